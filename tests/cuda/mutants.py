"""Kernels with one fault each, which the kernels' tests must find.

python -m tests.cuda.mutants [WORD]    # tries those whose name has the word; by default all
"""

import faulthandler
import multiprocessing
import re
import shutil
import signal
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Dict, NamedTuple

from . import emulator, equal

fork = multiprocessing.get_context("fork")  # the parent has imported everything


class Mutant(NamedTuple):
    """A file of operators/cuda, a text in it, its faulty replacement, and the expected message.

    If the file is not a kernel source, `of` names a compressor that includes it.
    """

    file: str
    part: str
    instead: str
    said: str
    of: str = "onebit"


OUT_OF_BOUNDS = "SIGSEGV"
NOTHING = "nothing"
MUTANTS = {
    "reads past the end": Mutant(
        "correction.cuh",
        "column.has(row) ? from[column[row]] : T{0}",
        "from[column[row]]",
        OUT_OF_BOUNDS,
    ),
    "reads the state that it writes": Mutant(
        "correction.cuh",
        "load(call.earlier_memory[0], column, kept)",
        "load(call.memory[0], column, kept)",
        "another payload",
    ),
    "writes past the end": Mutant(
        "decoding.cuh", "if (column.has(r)) call.out", "call.out", OUT_OF_BOUNDS
    ),
    "writes words past the end": Mutant(
        "compressors/onebit.cu", "if (word < word_count(call.n)) write", "write", OUT_OF_BOUNDS
    ),
    "the tail counts": Mutant(
        "compressors/onebit.cu", "if (!column.has(r)) p = 0;", "", "another payload"
    ),
    "another butterfly": Mutant(
        "sums.cuh",
        "int half = warp_lanes / 2; half != 0; half /= 2",
        "int half = 1; half != warp_lanes; half *= 2",
        "another payload",
    ),
    "a butterfly too short": Mutant("sums.cuh", "half != 0;", "half > 1;", "another payload"),
    "tiles in another order": Mutant(
        "sums.cuh",
        "column.has(row) ? published(sums + column[row])",
        "lane() * rows + row < count ? published(sums + lane() * rows + row)",
        "another payload",
    ),
    "no fence": Mutant(
        "grid.cuh", "__threadfence();\n  __syncthreads();", "__syncthreads();", "without a fence"
    ),
    "all blocks go on": Mutant(
        "compressors/onebit.cu",
        "if (!last_block(call.ticket)) return;",
        "last_block(call.ticket);",
        "another",
    ),
    "the ticket stays": Mutant(
        "grid.cuh", "atomicInc(ticket, gridDim.x - 1)", "atomicAdd(ticket, 1)", "another payload"
    ),
    "a thread leaves before a barrier": Mutant(
        "grid.cuh",
        "__threadfence();\n  __syncthreads();",
        "__threadfence();\n  if (threadIdx.x == 77) return false;\n  __syncthreads();",
        "not all threads of a block come",
    ),
    "the state is kept": Mutant("settle.cuh", "if (!finite) {", "if (false) {", "another state"),
    "unaligned words": Mutant("bytes.cuh", "if (aligned<Value>(to))", "if (true)", "SIGILL"),
    "a value that is not finite counts": Mutant(
        "compressors/bytegrad.cu", "{x, x, is_finite(x)}", "{x, x, true}", "another payload"
    ),
    "warps without a tile": Mutant(
        "compressors/bytegrad.cu",
        "lane() == 0 && number < tiles_of(call.n)",
        "lane() == 0",
        "written before the start of an array",
    ),
    "steps from the wrong end": Mutant(
        "compressors/bytegrad.cu",
        "(lower ? low : high)",
        "(lower ? high : low)",
        "decode to something",
    ),
    "another call of the batch": Mutant(
        "grid.cuh", "calls.call[blockIdx.y]", "calls.call[blockIdx.y / 2]", "another payload"
    ),
    "one ticket for all calls": Mutant(
        "grid.cuh",
        "__device__ inline bool last_block(uint32* ticket) {",
        "__device__ uint32 all_calls;\n"
        "__device__ inline bool last_block(uint32* ticket) {\n  ticket = &all_calls;",
        "many at once",
    ),
    "a digit of the wrong bits": Mutant(
        "compressors/topk/threshold.cuh",
        "top < digit_bits ? 0 : top - digit_bits",
        "top < digit_bits ? 0 : top - digit_bits + 1",
        "",
        "topk",
    ),
    "counts are not zeros again": Mutant(
        "compressors/topk/threshold.cuh",
        "    counts[highest - i] = 0;\n",
        "",
        "",
        "topk",
    ),
    "counts are not zeros to begin with": Mutant(
        "compressors/topk/threshold.cuh",
        "memory.histogram[i] = 0;",
        ";",
        "",
        "topk",
    ),
    "a list that is too short": Mutant(
        "compressors/topk/candidates.cuh",
        " && state.found >= k",
        "",
        "another payload",
        "topk",
    ),
    "a list without room": Mutant(
        "compressors/topk/candidates.cuh",
        "if (place + count.all > search.capacity) return;",
        "",
        "SIG",
        "topk",
    ),
    "candidates a place too far": Mutant(
        "compressors/topk/candidates.cuh",
        "place += count.before;",
        "place += count.before + 1;",
        "",
        "topk",
    ),
    "of equals the last ones": Mutant(
        "compressors/topk/send.cuh",
        "__popc(are_at_limit & lower_lanes)",
        "__popc(are_at_limit & ~lower_lanes)",
        "another payload",
        "topk",
    ),
    "parts begin where they end": Mutant(
        "compressors/topk/send.cuh",
        "    memory.parts[part] = counts;\n    counts += here;",
        "    counts += here;\n    memory.parts[part] = counts;",
        "another",
        "topk",
    ),
    "what is sent is kept": Mutant(
        "compressors/topk/topk.cu",
        "if (topk.memory[0] != nullptr) topk.memory[0][index] = rest;",
        "",
        "another state",
    ),
    "what float16 loses is forgotten": Mutant(
        "compressors/sparse.cuh",
        "return x - static_cast<T>(half_value(half));",
        "return 0;",
        "another",
        "topk",
    ),
    "lists are not cleared": Mutant(
        "compressors/sparse.cuh",
        "if (lists.whole(word)) *lists.at(word) = 0;",
        "",
        "another payload",
        "topk",
    ),
    "both edges in one word": Mutant(
        "compressors/sparse.cuh", "edges + (word != 0)", "edges", "another", "topk"
    ),
    "words with bytes of others": Mutant(
        "compressors/sparse.cuh",
        "word * sizeof(uint32) >= first && (word + 1) * sizeof(uint32) <= end",
        "true",
        "",
        "topk",
    ),
    "elements of earlier chunks are not counted": Mutant(
        "compressors/sparse.cuh",
        "before += scan(skipped).all;",
        "scan(skipped);",
        OUT_OF_BOUNDS,
        "topk",
    ),
    "bits behind the indices count": Mutant(
        "compressors/sparse.cuh",
        "left < word_bits ? bits & ((1u << left) - 1) : bits",
        "bits",
        "",
        "topk",
    ),
    "the limit of the largest in any case": Mutant(
        "compressors/dgc/dgc.cu",
        "  if (!memory.dgc->largest) return;\n",
        "",
        "",
    ),
    "counts of an earlier threshold": Mutant(
        "compressors/dgc/threshold.cuh",
        "  dgc.reaching = 0;\n",
        "",
        "",
        "dgc",
    ),
    "momentum of what is sent": Mutant(
        "compressors/dgc/dgc.cu",
        "call.momentum != nullptr && call.plan.momentum_masking",
        "false",
        "another state",
    ),
    "the ratio of the call": Mutant(
        "correction.cuh",
        "call.ratio_from != nullptr ? read<double>(call.ratio_from) : call.ratio",
        "call.ratio",
        "another aggregate",
    ),
    "a residual that does not decay": Mutant(
        "correction.cuh",
        "static_cast<T>(ratio * call.decay)",
        "static_cast<T>(ratio)",
        "another payload",
    ),
    "lanes a segment too far": Mutant(
        "stream.cuh",
        "segment = t * (tile / stream_segment) + lane()",
        "segment = t * (tile / stream_segment) + lane() + 1",
        "another payload",
        "randomk",
    ),
    "a wrong jump from tile to tile": Mutant(
        "stream.cuh",
        "product(power[i][base - 1], one_step);\n    }",
        "product(power[i][base - 2], one_step);\n    }",
        "another payload",
        "randomk",
    ),
    "half a jump": Mutant("stream.cuh", "word < 2", "word < 1", "another payload", "randomk"),
    "a remainder that is no remainder": Mutant(
        "../core/generator.h",
        "remainder < n ? remainder : remainder - n",
        "remainder",
        "",
        "randomk",
    ),
    "what was not finite is remembered": Mutant(
        "settle.cuh", "if (threadIdx.x == 0) ticket[1] = 0;", "", "another payload", "randomk"
    ),
    "an element that is drawn again is sent as zero": Mutant(
        "compressors/randomk/randomk.cu",
        "if (call.indices != nullptr)",
        "if (call.indices != nullptr) call.memory[0][indices[j]] = 0;\n"
        "      if (call.indices != nullptr)",
        "another payload",
    ),
    "an element that is drawn again is added to again": Mutant(
        "compressors/randomk/randomk.cu",
        "call.sums[first + j] = before",
        "call.out[indices[j]] = call.sums[first + j] = before",
        "decode to something",
    ),
    "draws past the last one": Mutant(
        "compressors/randomk/randomk.cu", "here = first + j < call.k", "here = true", OUT_OF_BOUNDS
    ),
    "all lanes draw for the same segment": Mutant(
        "compressors/dithering/dithering.cu",
        "lane() * (call.segment",
        "1 * (call.segment",
        "another payload",
    ),
    "chunks begin a segment too far": Mutant(
        "compressors/dithering/dithering.cu",
        "c * (chunk_of(call.segment) / stream_segment)",
        "c * (chunk_of(call.segment) / stream_segment) + 1",
        "another payload",
    ),
    "planes of groups past the end": Mutant(
        "compressors/dithering/dithering.cu", "if (first < call.n) write", "write", OUT_OF_BOUNDS
    ),
    "the last bytes are left as they are": Mutant(
        "compressors/dithering/dithering.cu", "if (end != bytes)", "if (false)", "another payload"
    ),
    "a symbol of zero has a sign": Mutant(
        "compressors/dithering/dithering.cu",
        "p[r] < 0 && symbol != 0",
        "p[r] < 0",
        "another payload",
    ),
    "natural levels above one count twice": Mutant(
        "compressors/dithering/levels.cuh",
        "lesser(y, T{1}) * power",
        "y * power",
        "another payload",
        "dithering",
    ),
    "elements of a block past the end": Mutant(
        "compressors/blocktopk/blocktopk.cu",
        "(size < first + part ? size : first + part)",
        "(size < first + part ? size + 1 : first + part)",
        OUT_OF_BOUNDS,
        "blocktopk",
    ),
    "residuals of sent elements stay": Mutant(
        "compressors/blocktopk/blocktopk.cu",
        "residual[memory.indices[j]] = x - decoded;",
        "residual[memory.indices[j]] = x;",
        "another state",
        "blocktopk",
    ),
    "one scale of two is spoiled": Mutant(
        "compressors/blocktopk/blocktopk.cu",
        "s < format.scales()",
        "s < 1",
        "another payload",
        "blocktopk",
    ),
    "unused bits of packed lists are set": Mutant(
        "packed.cuh", "i < count && i * bits", "i * bits", "another payload", "blocktopk"
    ),
    "a number in two bytes is cut off": Mutant(
        "packed.cuh", "number(i) >> (bit - i * bits)", "0", "another payload", "blocktopk"
    ),
    "a mean of all sent elements": Mutant(
        "compressors/blocktopk/levels.cuh",
        "count - high)",
        "count)",
        "another payload",
        "blocktopk",
    ),
    "a sum of sent elements in float32": Mutant(
        "compressors/blocktopk/levels.cuh",
        "chain += static_cast<double>(magnitude(j));",
        "chain += static_cast<float>(magnitude(j));",
        "another payload",
        "blocktopk",
    ),
    "counts of the search are not zeros to begin with": Mutant(
        "compressors/blocktopk/select.cuh", "counts[i] = 0;", ";", "another payload", "blocktopk"
    ),
    "of equal elements of a block the last ones": Mutant(
        "compressors/blocktopk/select.cuh",
        "__popc(votes.at_limit & lower_lanes)",
        "__popc(votes.at_limit & ~lower_lanes)",
        "another payload",
        "blocktopk",
    ),
    "a tile's end counts": Mutant(
        "compressors/blockwise/blockwise.cu",
        "column.has(r) ? x : T{0}",
        "column.has(r) ? x : T{1}",
        "another payload",
        "blockwise",
    ),
    "a tile without its second half is read": Mutant(
        "compressors/blockwise/blockwise.cu",
        "if (half * tile >= call.n)",
        "if (false)",
        OUT_OF_BOUNDS,
        "blockwise",
    ),
    "codes after the last block are left as they are": Mutant(
        "compressors/blockwise/blockwise.cu",
        "memory.codes[i] = 0;",
        "",
        "another payload",
        "blockwise",
    ),
    "an offset of another element": Mutant(
        "compressors/blockwise/blockwise.cu",
        "i % 64 / 16 * 16",
        "i % 64 / 16 * 8",
        "another payload",
        "blockwise",
    ),
    "another tile's draws": Mutant(
        "compressors/blockwise/blockwise.cu",
        "part.begin / tile_elements * segments + threadIdx.x",
        "threadIdx.x",
        "another payload",
        "blockwise",
    ),
    "a block that is not finite is not noticed": Mutant(
        "compressors/blockwise/blockwise.cu",
        "all_finite && finite;",
        "all_finite;",
        "another",
        "blockwise",
    ),
    "the least level is not rounded down": Mutant(
        "compressors/blockwise/blockwise.cu",
        "if (low < least) least = low;",
        "",
        "another payload",
        "blockwise",
    ),
    "a second part of a code is lost": Mutant(
        "compressors/blockwise/codes.cuh",
        "shift += part.width;",
        "break;",
        "decode to something",
        "blockwise",
    ),
}

_BARRIER = re.compile(r"__sync(threads|warp)\(\);")
_UNSEEN = (
    "3 in dithering.cu",  # an emulated ballot orders the same
    "1 in candidates.cuh",
    "4 in threshold.cuh",  # only the estimate of the threshold depends on it
    "1 in scan.cuh",  # topk has other barriers between two scans
)
_INCLUDED_BY = {"settle.cuh": "randomk", "scan.cuh": "topk"}  # others: the folder, or onebit


def without_barriers() -> Dict[str, Mutant]:
    """Return a mutant for each barrier of the kernels, which lacks it."""
    mutants = {}
    for path in sorted(emulator.OPERATORS.glob("cuda/**/*.cu*")):
        source, folder = path.read_text(), path.parent.name
        own = folder if folder in emulator.COMPRESSORS else "onebit"
        for number, barrier in enumerate(_BARRIER.finditer(source), start=1):
            before = source[barrier.start() - 60 : barrier.start()]
            name = f"{number} in {path.name}"
            if name in _UNSEEN:
                continue
            mutants[f"no barrier {name}"] = Mutant(
                str(path.relative_to(emulator.OPERATORS / "cuda")),
                before + barrier[0],
                before,
                "",
                _INCLUDED_BY.get(path.name, own),
            )
    return mutants


MUTANTS.update(without_barriers())


def try_kernels(module: Path, words: Connection) -> None:
    """Run the tests on a module, and send their message."""
    faulthandler.disable()
    emulator.give(module)
    try:
        equal.check_all(module.stem)
        equal.check_all_together(module.stem)
    except AssertionError as error:
        words.send(str(error))
    else:
        words.send(NOTHING)


def verdict_of(module: Path) -> str:
    """Return the tests' message for a module, or the signal that ended their process."""
    words, ours = fork.Pipe(duplex=False)
    process = fork.Process(target=try_kernels, args=(module, ours))
    process.start()
    ours.close()
    try:
        said = words.recv() if words.poll(60) else "too slow"
    except EOFError:
        said = None
    process.terminate()
    process.join()
    return said or signal.Signals(-process.exitcode).name


def said_of(mutant: Mutant, operators: Path, folder: Path) -> str:
    """Return the tests' message for a mutant, built in a copy of operators/."""
    path = operators / "cuda" / mutant.file
    original = path.read_text()
    assert original.count(mutant.part) == 1
    path.write_text(original.replace(mutant.part, mutant.instead))
    try:
        kernels = emulator.SOURCES[mutant.of].relative_to(emulator.OPERATORS)
        source = path if path.suffix == ".cu" else operators / kernels
        module = emulator.compile_module(source, folder, operators)
    finally:
        path.write_text(original)
    return verdict_of(module)


def is_caught(mutant: Mutant, said: str) -> bool:
    """Return whether the message is the expected one."""
    return said != NOTHING and mutant.said in said


def main() -> None:
    """Try the mutants whose name has the word on the command line."""
    emulator.start()
    missed, word = 0, "".join(sys.argv[1:])
    tried = {name: mutant for name, mutant in MUTANTS.items() if word in name}
    with tempfile.TemporaryDirectory() as folder:
        operators = Path(shutil.copytree(emulator.OPERATORS, Path(folder) / "operators"))
        for name, mutant in tried.items():
            said = said_of(mutant, operators, Path(folder))
            missed += not is_caught(mutant, said)
            first, *_ = said.splitlines()
            print(
                f"{'caught' if is_caught(mutant, said) else 'MISSED'}  {name}: {first}", flush=True
            )
    sys.exit(f"{missed} of {len(tried)} mutants were not caught" if missed else 0)


if __name__ == "__main__":
    main()
