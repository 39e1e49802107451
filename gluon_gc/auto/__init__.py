"""The compressor "auto": measures network and compressors, then chooses. Needs no framework."""
