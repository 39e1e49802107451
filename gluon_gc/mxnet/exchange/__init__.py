"""The exchange of gradients: channels, codecs, and the base class of all backends."""
