/* The C interface of gluon_gc: compression of gradients, independent of any framework.

   A codec compresses a chunk, n elements of a gradient, to a payload: the bytes that are sent. C(x) is the payload of
   elements x, and D(payload) are the decoded elements. A step sums a chunk over all workers in three calls:

     each worker w     gluon_gc_compress      payload_w = C(gradient_w)
     the aggregator    gluon_gc_aggregate     payload = C(D(payload_0) + D(payload_1) + ...)
     each worker       gluon_gc_decompress    gradient = D(payload)

   The aggregator is a parameter server, or the worker that owns the chunk. There are two ways without an aggregator. An
   all-reduce sums summable payloads (gluon_gc_traits). Or each worker receives all payloads by an all-gather, and
   gluon_gc_decompress sums them. The caller sends and receives the payloads.

   Memory: the caller allocates everything: tensors, payloads, momentum, residuals and workspace. Calls of codecs
   allocate no buffers.
   Order: the caller orders the calls. It can queue the next call without reading a result of the last one, so calls
   can be queued in a CUDA stream.
   Random numbers: some compressors draw from a random stream. The caller keeps its position in the stream, and advances
   the position by gluon_gc_needs.draws after each call of compress or aggregate.
   Errors: a function that returns `const char*` returns NULL, or an error message that stays valid until the next call
   of the same thread. After an error, the output of the function is undefined. Only gluon_gc_abi and
   gluon_gc_compressor return other text.
   Names: comments write "compress" for gluon_gc_compress, and so on.
   Python: gluon_gc/kernels/library.py declares this interface. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLUON_GC_API __attribute__((visibility("default")))

/* Increase it with every change to a declaration in this file, together with VERSION in gluon_gc/kernels/library.py. */
enum { gluon_gc_abi_version = 4 };

/* Returns "version=V cuda=N ticket_bytes=N needs=N traits=N ...": the constants, and the bytes of each struct below.
   Python compares its declarations with this text before any other call. The function's signature never changes. */
GLUON_GC_API const char* gluon_gc_abi(void);

/* A compressor with its options, for n elements of one dtype. It never changes after gluon_gc_new, so threads can share
   it. The caller owns the state: momentum, and the residual of error feedback (the part that compression lost). */
typedef struct gluon_gc_codec gluon_gc_codec;

/* The size in bytes of an element. */
enum gluon_gc_dtype { gluon_gc_float32 = 4, gluon_gc_float64 = 8 };

enum { gluon_gc_cuda = 16 };         /* a value of `isa` in gluon_gc_new: run on the GPU */
enum { gluon_gc_ticket_bytes = 64 }; /* size of a ticket: memory through which a kernel's thread blocks synchronise */

/* Properties that all codecs of one compressor share; each is 0 or 1. */
typedef struct {
  int draws;       /* It draws from the random stream, so its calls need a position. */
  int draws_alike; /* All workers and servers draw the same numbers. decompress needs the position that compress had. */
  int summable;    /* A payload is an array of the codec's dtype, and D(a + b) = D(a) + D(b). A plain
                      all-reduce sums such payloads; gluon_gc_aggregate refuses them. */
  int accumulates; /* It applies momentum itself, and accumulates the elements that it does not send (DGC). */
  int cuda;        /* It has CUDA kernels. */
} gluon_gc_traits;

/* Sizes of the memory that the calls of a codec need. The caller allocates the arrays of
   gluon_gc_state, and fills them with zeros before the first step. */
typedef struct {
  size_t payload_bytes;   /* largest size of a payload */
  size_t memory[2];       /* number of elements of each array of error-feedback state; 0: there is no such array */
  size_t momentum;        /* number of elements of the momentum array; 0: there is none */
  size_t workspace_bytes; /* scratch memory of a call; uninitialised, aligned to 64 bytes */
  uint64_t draws;         /* number of draws that a call of compress or aggregate takes from the random stream */
  int length_at;          /* -1: every payload has payload_bytes. Else payloads vary in length, and a little-endian
                             uint32 at this offset counts the bytes from there to the end of the payload. */
} gluon_gc_needs;

/* A position in the random stream: the one that follows `state` by `draws` numbers. */
typedef struct {
  uint64_t state[2];
  uint64_t draws;
} gluon_gc_position;

/* The outcome of a call. */
typedef struct {
  uint64_t bytes;  /* compress, aggregate: bytes of the payload written. decompress, inspect: of all payloads read */
  uint64_t finite; /* compress, aggregate: 1 if all elements that were compressed (p, see gluon_gc_compress) are finite,
                      else 0. decompress, inspect: 1 if each payload decodes to finite elements, else 0; their sum may
                      still overflow */
} gluon_gc_status;

/* The state of a codec: momentum and the memory of error feedback, which the caller allocates as gluon_gc_needs says. */
typedef struct {
  void* momentum;  /* gluon_gc_needs.momentum elements */
  void* memory[2]; /* gluon_gc_needs.memory elements */
} gluon_gc_state;

/* The arguments of a call. A function ignores the fields that it does not need. Arrays have the codec's dtype; payloads
   need no alignment. */
typedef struct {
  const gluon_gc_codec* codec;
  void* values;         /* n elements: compress and restore read them, decompress and residual write them */
  double scale;         /* compress multiplies `values` by it, aggregate multiplies the sum. To average over workers,
                           pass 1 / workers to compress and 1 to aggregate. */
  const double* factor; /* a second scale, read when the call runs, such as a clipping factor; NULL: 1 */
  double ratio;         /* previous over current learning rate; for compress with "corrected" or "sparse" feedback */
  gluon_gc_state state; /* compress and aggregate write it, and read it if `earlier` is NULL */
  const gluon_gc_state* earlier; /* the state before the call, if it is in other arrays. compress and aggregate read
                                    it, and write all elements of `state`. NULL: the state before the call is in
                                    `state`. The struct is in host memory, even for a CUDA codec. */
  gluon_gc_position position; /* where the call starts to draw */
  uint8_t* payload;        /* output of compress and aggregate: payload_bytes of memory */
  const uint8_t* payloads; /* input of aggregate, decompress and inspect: payload i is at payloads + i * stride */
  size_t stride, count;    /* stride >= payload_bytes; number of payloads */
  int add;                 /* if not 0, decompress adds to `values` instead of overwriting them */
  void* workspace;         /* scratch memory of this call alone */
  gluon_gc_status* status; /* output; may be NULL, except for inspect */
  int threads;             /* largest number of CPU threads */
  void* stream;            /* CUDA: a CUstream or cudaStream_t */
  void* ticket;            /* CUDA: gluon_gc_ticket_bytes of memory that no call uses at the same time. The caller fills
                              it with zeros once; each call leaves zeros in it. */
} gluon_gc_call;

/* Makes a codec for n elements. Free it with gluon_gc_free.

   `options` are lines of the form "name=value": the options of the compressor, and
     ef   error feedback: "vanilla", or "corrected" ("sparse" is another name for it). Missing: no error feedback.
     ef_decay   a factor of the residual, above 0 and at most 1. Missing: 1.
     mu   the coefficient of momentum. Missing: no momentum. It is Nesterov momentum, except with "dgc", which has its
          own options.
   `isa` selects the instruction set: 0 is scalar, 1 AVX2, 2 AVX-512; it must not exceed gluon_gc_best_isa(). -1
   selects the best one, gluon_gc_cuda the GPU.

   A CUDA codec writes the same bytes as a CPU codec with the same options. "dithering" has CUDA codecs only with the
   option fixed_width=True; then the CPU codecs of other workers and of servers need this option too. In a CUDA codec's
   calls, all pointers except `codec` and `stream` point to GPU memory; the gluon_gc_call itself is in host memory. A
   call queues kernels in its stream, in the current CUDA context, and returns at once. It does not validate payloads:
   gluon_gc_inspect does. gluon_gc_inspect, gluon_gc_used and gluon_gc_valid read payloads in host memory, also those of
   a CUDA codec, so call them before you copy payloads to the GPU. */
GLUON_GC_API const char* gluon_gc_new(const char* name, const char* options, size_t n, enum gluon_gc_dtype dtype,
                                      int isa, gluon_gc_codec** codec);
GLUON_GC_API void gluon_gc_free(gluon_gc_codec* codec);

/* Writes the sizes that the calls of a codec need. */
GLUON_GC_API void gluon_gc_need(const gluon_gc_codec* codec, gluon_gc_needs* needs);

/* Returns the name of compressor number `i`, and writes its traits. Returns NULL after the last compressor. */
GLUON_GC_API const char* gluon_gc_compressor(size_t i, gluon_gc_traits* traits);

/* The best `isa` that this CPU can run. */
GLUON_GC_API int gluon_gc_best_isa(void);

/* Returns NULL if this library and this machine can run a compressor on a GPU, else the reason why not. `name` is a
   compressor, or "convert" or "clip" for gluon_gc_convert or gluon_gc_clip. */
GLUON_GC_API const char* gluon_gc_cuda_ready(const char* name);

/* Queues a fill of GPU memory with zeros, for example of tickets. */
GLUON_GC_API const char* gluon_gc_clear(void* at, size_t bytes, void* stream);

/* Replaces the CUDA kernels of `name` (see gluon_gc_cuda_ready) by the kernels in an image: a cubin, a fat binary, or
   PTX as text. The image must stay in memory. Do not call this while codecs run. */
GLUON_GC_API const char* gluon_gc_cuda_code(const char* name, const void* image);

/* Some functions below take an array of `count` calls, for example one for each chunk that is sent together. The field
   gluon_gc_call.count is another number: the payloads of one call. The codecs of the calls may differ in n only. The
   CPU runs the calls one after the other. The GPU runs them together, many in one launch. */

/* Compresses a gradient, with the momentum and the error feedback that the codec's options select:

     g = values * scale * factor
     m = mu m + g,  g = g + mu m      Nesterov momentum; m is in `momentum`
     p = g + r e                      error feedback; e is the residual; r is ef_decay, times `ratio` for "corrected"
     payload = C(p)
     e = p - D(payload)               the new residual, which `memory` stores

   With "corrected" or "sparse" feedback, a payload carries `ratio` to the aggregator. Payloads of a summable compressor
   do not: they are added as they are. DGC has its own rules (compressors/dgc/dgc.cpp).

   If an element of p is NaN or infinite, the payload decodes to a NaN or an infinity, so that every worker notices.
   The new momentum and memory are then zeros.

   A caller that may have to undo a call keeps two states, and lets each call read one of them as `earlier` and write
   the other. The payload has the same bits as with one state, and the call makes as many passes over memory. */
GLUON_GC_API const char* gluon_gc_compress(const gluon_gc_call* calls, size_t count);

/* Sums payloads and compresses the sum: the same as compress with values = D(payload 0) + D(payload 1) + ..., added in
   this order. A codec with `mu` applies momentum here too, so give the aggregator a codec without it. The ratio comes
   from the payloads, not from the call. On the CPU, fails if a payload is invalid, or if the payloads carry different
   ratios. */
GLUON_GC_API const char* gluon_gc_aggregate(const gluon_gc_call* calls, size_t count);

/* values = D(payload 0) + D(payload 1) + ..., added in this order. With `add`, the sum starts from the old values
   instead of 0. On the CPU, fails if a payload is invalid, or if the payloads carry different ratios. With a summable
   compressor, each call must have one payload (gluon_gc_call.count = 1), the sum of the all-reduce. */
GLUON_GC_API const char* gluon_gc_decompress(const gluon_gc_call* calls, size_t count);

/* Returns the size of a payload in bytes, from the length in it if payloads vary in length. It reads at most `capacity`
   bytes. The result may exceed `capacity` if the payload is cut off or invalid. */
GLUON_GC_API size_t gluon_gc_used(const gluon_gc_codec* codec, const uint8_t* payload, size_t capacity);

/* Returns 1 if a payload can be decoded, else 0. It reads at most `capacity` bytes. */
GLUON_GC_API int gluon_gc_valid(const gluon_gc_codec* codec, const uint8_t* payload, size_t capacity);

/* Validates payloads and writes the status, as decompress does, without decoding them. The payloads and the status are
   in host memory, even for a CUDA codec. */
GLUON_GC_API const char* gluon_gc_inspect(const gluon_gc_call* calls, size_t count);

/* For checkpoints. residual: values = e, the residual that `memory` stores. restore: sets `memory` so that the residual
   is e = values. Both fail for a codec without error feedback. */
GLUON_GC_API const char* gluon_gc_residual(const gluon_gc_call* calls, size_t count);
GLUON_GC_API const char* gluon_gc_restore(const gluon_gc_call* calls, size_t count);

/* A conversion of n elements to another dtype: to = from * scale * factor, rounded to the dtype of `to`. */
typedef struct {
  const void* from;
  void* to;
  size_t n;
  int from_itemsize, to_itemsize; /* 2: float16; 4: float32; 8: float64 */
  double scale;
  const double* factor; /* NULL: 1 */
  uint64_t* nonfinite;  /* becomes 1 if an element of `from` is NaN or infinite, else it does not change; may be NULL */
} gluon_gc_conversion;

/* Queues `count` conversions in a CUDA stream, in the current CUDA context. */
GLUON_GC_API const char* gluon_gc_convert(const gluon_gc_conversion* conversions, size_t count, void* stream);

/* A gradient on the GPU whose norm is to be clipped. */
typedef struct {
  const void* x;
  size_t n;
  int itemsize; /* 2: float16; 4: float32; 8: float64 */
} gluon_gc_values;

/* Clipping by the global norm: norm = l2 norm of scale * x over all elements x of all gradients. */
typedef struct {
  double scale;
  double max_norm;
  double* factor;  /* output: 1 if norm <= max_norm or if the norm is not finite, else max_norm / norm.
                      operators/mxnet/clip.cpp computes the same on the CPU. */
  void* workspace; /* gluon_gc_clip_workspace() bytes, uninitialised, aligned to 64 bytes */
  void* stream;
} gluon_gc_clipping;

/* Returns the bytes of the workspace. */
GLUON_GC_API size_t gluon_gc_clip_workspace(const gluon_gc_values* arrays, size_t count);

/* Queues the computation of the clipping factor in a CUDA stream, in the current CUDA context. It does not change the
   gradients: pass the factor on to gluon_gc_compress or gluon_gc_convert. */
GLUON_GC_API const char* gluon_gc_clip(const gluon_gc_values* arrays, size_t count, const gluon_gc_clipping* clipping);

/* The random stream: the generator xorshift128+. draw writes the next n draws. jump advances the state by `draws`
   draws, jump_to_worker by worker * 2^64 draws, so that the streams of workers do not overlap. */
GLUON_GC_API void gluon_gc_draw(gluon_gc_position position, size_t n, uint64_t* draws);
GLUON_GC_API void gluon_gc_jump(uint64_t state[2], uint64_t draws);
GLUON_GC_API void gluon_gc_jump_to_worker(uint64_t state[2], uint64_t worker);

/* The functions below run on the CPU. Their `isa` is 0, 1 or 2, as for gluon_gc_new. */

/* Returns the sum of squares of n elements, accumulated in float64. The order of the additions depends on n only, so
   the result does not depend on `threads` and `isa`. itemsize is 4 or 8. */
GLUON_GC_API double gluon_gc_sum_of_squares(const void* x, size_t n, int itemsize, int threads, int isa);

/* Returns 1 if all n elements are finite, 0 if one is NaN or infinite. itemsize is 2 (float16), 4 or 8. */
GLUON_GC_API int gluon_gc_values_finite(const void* x, size_t n, int itemsize, int threads, int isa);

/* Conversion to float16, out = x * scale, rounded to nearest even; and conversion from float16, out = x. */
GLUON_GC_API void gluon_gc_half_from_float(const float* x, size_t n, float scale, uint16_t* out, int threads,
                                           int isa);
GLUON_GC_API void gluon_gc_float_from_half(const uint16_t* x, size_t n, float* out, int threads, int isa);

/* A matrix M (rows x columns) and its factors, for PowerSGD (low_rank.h). All are row-major. A left factor P is rank x
   rows, a right factor Q is rank x columns: their product is transposed(P) Q. */
typedef struct {
  size_t rows, columns, rank;
  int itemsize; /* 4 or 8 */
  int threads;
  int isa;
} gluon_gc_low_rank;

/* Error feedback of PowerSGD. On entry, m is what the last step wanted to send, and transposed(p) q what it sent: the
   difference is the residual. The result is m = (m - transposed(p) q) + g, with the new gradient g, and
   left = next transposed(m), where `next` is the right factor with which this step begins. */
GLUON_GC_API void gluon_gc_accumulate(const gluon_gc_low_rank* shape, const void* g, const void* p, const void* q,
                                      const void* next, void* m, void* left);
/* right = p m. */
GLUON_GC_API void gluon_gc_project(const gluon_gc_low_rank* shape, const void* p, const void* m, void* right);
/* out = transposed(p) q. */
GLUON_GC_API void gluon_gc_multiply(const gluon_gc_low_rank* shape, const void* p, const void* q, void* out);
/* Makes the `count` rows of x, which have n elements, orthonormal. A row that depends on the rows before it becomes
   zeros. A NaN or an infinity gives NaNs. */
GLUON_GC_API void gluon_gc_orthonormalise(void* x, size_t count, size_t n, int itemsize);

/* Framing (framing.h). MXNet's server adds 0.0 to each float32 word, which alters -0.0, denormals and NaNs. So a
   payload is sent as ordinary floats, in blocks of 128 words: one header word and up to 127 words of payload.
   frame_words returns the number of words that `bytes` need. frame_bytes returns the number of payload bytes that
   whole blocks carry; `words` is a multiple of 128. framed returns 1 if n words from the network are well-formed. */
GLUON_GC_API size_t gluon_gc_frame_words(size_t bytes);
GLUON_GC_API size_t gluon_gc_frame_bytes(size_t words);
GLUON_GC_API void gluon_gc_frame(const uint8_t* payload, size_t bytes, uint32_t* words, int threads, int isa);
GLUON_GC_API void gluon_gc_unframe(const uint32_t* words, size_t bytes, uint8_t* payload, int threads, int isa);
GLUON_GC_API int gluon_gc_framed(const uint32_t* words, size_t n, int isa);

/* The array in which MXNet's server receives a message: framed words, in rows of a row_sparse array. A message has one
   or more parts, such as payloads. If its length varies, it begins with that length, a uint32. */
typedef struct {
  size_t bytes;     /* largest size of a message before framing, with its length */
  size_t row_words; /* words in a row */
  size_t rows;      /* largest number of rows of a message */
} gluon_gc_rows;

/* Computes the sizes of this array for messages whose parts have at most `bytes` in total. If `varies` is 0, all
   messages have one length, and a message is one row. Otherwise a message is cut into rows, and only the rows that it
   fills are sent. With `in_one`, a message whose length varies is not cut: it is one row of the largest size, which is
   sent whole. */
GLUON_GC_API void gluon_gc_message_rows(size_t bytes, int varies, int in_one, gluon_gc_rows* rows);

/* The message of a row-sparse gradient (row_format.h). Here, rows are those of the gradient. The message has a head
   (its length in bytes, the number of rows, and their indices), and then the payload of these rows' elements. */
GLUON_GC_API size_t gluon_gc_rows_head_bytes(size_t rows); /* the size of a head */
GLUON_GC_API size_t gluon_gc_row_list_bytes(size_t rows);  /* if the rows are uncompressed: without their number */

/* Runs a plain loop over memory, for benchmarks: no kernel that moves the same bytes can be faster. limits.h lists the
   loops. b and c may be NULL if the loop does not use them. */
GLUON_GC_API const char* gluon_gc_limit(const char* name, void* a, void* b, void* c, size_t n, int threads, int isa);

#ifdef __cplusplus
}
#endif
