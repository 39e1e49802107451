"""What the compressor "auto" measures, and how it chooses; needs no framework."""
