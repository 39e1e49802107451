"""The exchange: sums tensors over workers, in compressed form. It knows no framework.

`exchange.Exchange` is where to begin reading.
"""
