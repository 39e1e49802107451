"""State files and state_dicts that an earlier version wrote, which later versions must load.

`torch_states.py` and `mxnet_states.py` have written them, and can write them again. Replace the
files only together with the number of their format.
"""
