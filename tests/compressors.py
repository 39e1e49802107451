"""Every compressor, with options as users give them: what tests run through."""

from gluon_gc.compression import registry

COMPRESSORS = {
    "onebit": {"compressor": "onebit", "scaling": True},
    "onebit unscaled": {"compressor": "onebit", "scaling": False},
    "topk": {"compressor": "topk", "k": 0.05},
    "randomk": {"compressor": "randomk", "k": 0.1, "seed": 7},
    "bytegrad": {"compressor": "bytegrad"},
    "dithering": {"compressor": "dithering", "k": 2, "seed": 7},
    "dithering l2": {"compressor": "dithering", "k": 5, "normalize": "l2", "seed": 7},
    "natural dithering": {"compressor": "dithering", "k": 3, "partition": "natural", "seed": 7},
    "natural dithering l2": {
        "compressor": "dithering",
        "k": 12,
        "partition": "natural",
        "normalize": "l2",
        "seed": 7,
    },
}
# dgc has its own feedback and momentum, and tests of its own.
assert {params["compressor"] for params in COMPRESSORS.values()} | {"dgc"} == set(registry)
