/* The C interface of gluon_gc: codecs, below every framework. What calls it owns the memory, the order of the
   calls and the random stream's position; a call allocates nothing, and nothing that it computes is needed on
   the host to go on. Functions return NULL, or a message that says what is wrong, good until the thread calls
   again; what they were to write is undefined then. gluon_gc/kernels declares it to Python. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLUON_GC_API __attribute__((visibility("default")))

/* Raise it with each change of what this file declares, and with it VERSION in gluon_gc/kernels/library.py. */
enum { gluon_gc_abi_version = 2 };

/* "version=V cuda=N ticket_bytes=N needs=N traits=N ...": constants, and the bytes of each struct below. Callers that have
   declared the structs themselves compare this with their own before any other call. This function never changes. */
GLUON_GC_API const char* gluon_gc_abi(void);

/* Compresses, aggregates and decodes n elements; does not change. */
typedef struct gluon_gc_codec gluon_gc_codec;

enum gluon_gc_dtype { gluon_gc_float32 = 4, gluon_gc_float64 = 8 };

enum { gluon_gc_cuda = 16 };         /* for `isa`: the GPU */
enum { gluon_gc_ticket_bytes = 64 }; /* with which the blocks of a kernel tell each other how far they are */

/* What is true of all codecs of a compressor. */
typedef struct {
  int draws;       /* from the random stream */
  int draws_alike; /* all nodes draw the same, and decode with the position that compress had */
  int summable;    /* a payload is an array of the codec's dtype, and that of a sum is the sum of them */
  int accumulates; /* keeps what it does not send, and applies momentum, by itself */
  int cuda;        /* has kernels for CUDA */
} gluon_gc_traits;

/* What a codec needs. */
typedef struct {
  size_t payload_bytes;   /* of a payload, at most */
  size_t memory[2];       /* elements of each array that error feedback keeps, or 0; zeros to begin with */
  size_t momentum;        /* elements of the array that momentum keeps, or 0; zeros to begin with */
  size_t workspace_bytes; /* for any call, uninitialised, aligned to 64 bytes */
  uint64_t draws;         /* that each call of compress or aggregate takes from the random stream */
  int length_at;          /* where a payload of varying length says how many bytes it has from there on, as a
                             little-endian uint32; -1: all have payload_bytes */
} gluon_gc_needs;

/* Where in the random stream a call draws: `draws` draws on from `state`. */
typedef struct {
  uint64_t state[2];
  uint64_t draws;
} gluon_gc_position;

/* Of what was compressed or decoded. */
typedef struct {
  uint64_t bytes;  /* in use, of all payloads */
  uint64_t finite; /* 1, or 0 if an element is a NaN or infinite */
} gluon_gc_status;

/* What a codec is given; what it has no use for is left out. Arrays are of the codec's dtype, payloads at any
   address. */
typedef struct {
  const gluon_gc_codec* codec;
  void* values;     /* n */
  double scale;     /* multiplies the values before all else */
  const double* factor; /* multiplies the scale, if not NULL */
  double ratio;     /* previous learning rate over the current one; for feedback that is not vanilla */
  void* momentum;
  void* memory[2];
  gluon_gc_position position;
  uint8_t* payload;        /* of payload_bytes */
  const uint8_t* payloads; /* number i is at payloads + i * stride, stride >= payload_bytes */
  size_t stride, count;
  int add;                 /* to what is in values */
  void* workspace;
  gluon_gc_status* status; /* or NULL */
  int threads;             /* at most so many */
  void* stream;            /* of a codec for CUDA: a CUstream or cudaStream_t */
  void* ticket;            /* of a codec for CUDA: gluon_gc_ticket_bytes, zeros before its first call and after each */
} gluon_gc_call;

/* Makes a codec. Options are lines "name=value": those of the compressor, and
     ef: vanilla, corrected or sparse (error feedback), if any; the last two differ in name only
     mu: of momentum, if any
   `isa` is 0 (scalar), 1 (AVX2) or 2 (AVX-512), at most gluon_gc_best_isa(); -1: that; or gluon_gc_cuda.

   A codec for CUDA gives the same bytes. All that its calls are given is memory of the GPU, the status too. They
   queue kernels in the stream, on the context that is current, and return; so payloads are not checked: have
   gluon_gc_inspect do it before they are copied to the GPU. */
GLUON_GC_API const char* gluon_gc_new(const char* name, const char* options, size_t n, enum gluon_gc_dtype dtype,
                                      int isa, gluon_gc_codec** codec);
GLUON_GC_API void gluon_gc_free(gluon_gc_codec* codec);
GLUON_GC_API void gluon_gc_need(const gluon_gc_codec* codec, gluon_gc_needs* needs);

/* Number `i` of the compressors: its name and traits; NULL if there are not so many. */
GLUON_GC_API const char* gluon_gc_compressor(size_t i, gluon_gc_traits* traits);
GLUON_GC_API int gluon_gc_best_isa(void);

/* NULL if this library and this machine can run a compressor, or with "convert" or "clip" gluon_gc_convert or
   gluon_gc_clip, on a GPU, else why not. */
GLUON_GC_API const char* gluon_gc_cuda_ready(const char* name);

/* Queues in a stream of the GPU that memory, such as tickets, becomes zeros. */
GLUON_GC_API const char* gluon_gc_clear(void* at, size_t bytes, void* stream);

/* Takes the kernels for CUDA that gluon_gc_cuda_ready asks for from this image (a cubin, a fat
   binary, or PTX as text), which stays where it is, rather than from the library. Not while codecs run. */
GLUON_GC_API const char* gluon_gc_cuda_code(const char* name, const void* image);

/* The functions below take `count` calls of codecs that differ in n alone, such as those of all chunks of a message.
   On the CPU they are made one after the other. On the GPU they are queued together in one stream, in as few launches
   as one call takes for every 16 or more, and run at the same time: each has a workspace and a ticket of its own. */

/* payload = C(p), p = values * scale after momentum and feedback. If an element is not finite, the payload
   decodes to what is not, and momentum and memory are zeros. */
GLUON_GC_API const char* gluon_gc_compress(const gluon_gc_call* calls, size_t count);

/* payload = C(sum of D(payloads) after feedback): the sum is made in their order, with the ratio that came with
   them. Checks the payloads first, whose ratios must be equal. */
GLUON_GC_API const char* gluon_gc_aggregate(const gluon_gc_call* calls, size_t count);

/* values = sum of D(payloads), in their order, or with `add` that is added. Checks the payloads as aggregate does. */
GLUON_GC_API const char* gluon_gc_decompress(const gluon_gc_call* calls, size_t count);

/* The bytes of a payload that are in use, by the length that it says, which may be more than `capacity`; `capacity`
   bytes can be read. */
GLUON_GC_API size_t gluon_gc_used(const gluon_gc_codec* codec, const uint8_t* payload, size_t capacity);

/* Whether a payload can be decoded; `capacity` bytes can be read. */
GLUON_GC_API int gluon_gc_valid(const gluon_gc_codec* codec, const uint8_t* payload, size_t capacity);

/* Checks payloads and writes the status, as decompress does, and no more. The payloads and the status are in the
   host's memory, also of a codec for CUDA. */
GLUON_GC_API const char* gluon_gc_inspect(const gluon_gc_call* calls, size_t count);

/* values = what feedback will add to the next p, from memory; and back. */
GLUON_GC_API const char* gluon_gc_residual(const gluon_gc_call* calls, size_t count);
GLUON_GC_API const char* gluon_gc_restore(const gluon_gc_call* calls, size_t count);

/* to = from * scale, of n values of a dtype each, and rounded: float16, float32 or float64, as the itemsize says. */
typedef struct {
  const void* from;
  void* to;
  size_t n;
  int from_itemsize, to_itemsize;
  double scale;
  const double* factor; /* multiplies the scale, if not NULL */
  uint64_t* nonfinite;  /* becomes 1, if not NULL, when a value of `from` is a NaN or infinite */
} gluon_gc_conversion;

/* Queues conversions in a stream of the GPU, on the context that is current: a launch for every 71 of them. */
GLUON_GC_API const char* gluon_gc_convert(const gluon_gc_conversion* conversions, size_t count, void* stream);

/* Values of the GPU whose norm is to be clipped: float16, float32 or float64. */
typedef struct {
  const void* x;
  size_t n;
  int itemsize;
} gluon_gc_values;

typedef struct {
  double scale;    /* multiplies all values */
  double max_norm;
  double* factor;  /* becomes that by which to multiply them too, so that the l2 norm of all is at most max_norm; as
                      operators/mxnet/clip.cpp has it */
  void* workspace; /* of gluon_gc_clip_workspace bytes, uninitialised, aligned to 64 bytes */
  void* stream;
} gluon_gc_clipping;

/* Queues that in a stream of the GPU, on the context that is current. */
GLUON_GC_API size_t gluon_gc_clip_workspace(const gluon_gc_values* arrays, size_t count);
GLUON_GC_API const char* gluon_gc_clip(const gluon_gc_values* arrays, size_t count, const gluon_gc_clipping* how);

/* The random stream: xorshift128+. */
GLUON_GC_API void gluon_gc_draw(gluon_gc_position position, size_t n, uint64_t* draws);
GLUON_GC_API void gluon_gc_jump(uint64_t state[2], uint64_t draws);
GLUON_GC_API void gluon_gc_jump_to_worker(uint64_t state[2], uint64_t worker); /* worker * 2^64 draws */

/* In float64, in an order that n alone decides; itemsize 4 or 8. */
GLUON_GC_API double gluon_gc_sum_of_squares(const void* x, size_t n, int itemsize, int threads, int isa);

/* Whether no value is a NaN or an infinity; itemsize 2 is float16. */
GLUON_GC_API int gluon_gc_values_finite(const void* x, size_t n, int itemsize, int threads, int isa);

/* float16: out = x * scale, rounded to nearest even; and back. */
GLUON_GC_API void gluon_gc_half_from_float(const float* x, size_t n, float scale, uint16_t* out, int threads,
                                           int isa);
GLUON_GC_API void gluon_gc_float_from_half(const uint16_t* x, size_t n, float* out, int threads, int isa);

/* Payloads as words that survive a sum with 0.0: operators/core/framing.h. */
GLUON_GC_API size_t gluon_gc_frame_words(size_t bytes);
GLUON_GC_API size_t gluon_gc_frame_bytes(size_t words); /* that words carry, whose number is of whole blocks */
GLUON_GC_API void gluon_gc_frame(const uint8_t* payload, size_t bytes, uint32_t* words, int threads, int isa);
GLUON_GC_API void gluon_gc_unframe(const uint32_t* words, size_t bytes, uint8_t* payload, int threads, int isa);
GLUON_GC_API int gluon_gc_framed(const uint32_t* words, size_t n, int isa);

/* A framed message in the rows of an array. */
typedef struct {
  size_t bytes;     /* at most, with the message's own length in front if that varies */
  size_t row_words; /* of each row */
  size_t rows;      /* at most */
} gluon_gc_rows;

/* How a message lies in rows whose parts have at most `bytes`. If its length varies, it travels in the rows that it
   fills, or with `in_one` in one row of full length. */
GLUON_GC_API void gluon_gc_message_rows(size_t bytes, int varies, int in_one, gluon_gc_rows* rows);

/* Lists of rows, and messages of compressed rows: operators/core/row_format.h. */
GLUON_GC_API size_t gluon_gc_row_list_bytes(size_t rows);  /* of a list, at most */
GLUON_GC_API size_t gluon_gc_rows_head_bytes(size_t rows); /* in front of the payload of a message, at most */

/* A plain loop over memory, for benchmarks: operators/core/limits.h has their names. b and c may be NULL where
   the loop has no use for them. */
GLUON_GC_API const char* gluon_gc_limit(const char* name, void* a, void* b, void* c, size_t n, int threads, int isa);

#ifdef __cplusplus
}
#endif
