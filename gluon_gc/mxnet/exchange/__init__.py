"""The exchange of gradients: channels, coders, and the base class of all backends."""
