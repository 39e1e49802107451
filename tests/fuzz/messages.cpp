// The fuzz harness of messages. MXNet's operators reject rows from a network, or stay within bounds. They are called as
// MXNet calls them, but without MXNet.
//
// An input consists of an operator's number (see LLVMFuzzerTestOneInput), a compressor's number, the compressor's
// options as text, ended by a zero byte, Shape, and unframed messages, each after its length in two bytes. The last
// message has no length.
#include <algorithm>
#include <list>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/abi.h"
#include "fuzz.h"
#include "mxnet/lib_api.h"

using namespace mxnet::ext;

// Replaces MXNet's function, which keeps all errors for ever.
std::stringstream& MXerrorMsgs::add(const char*, int) {
  static std::stringstream latest;
  latest.str("");
  return latest;
}

namespace gluon_gc {
namespace {

constexpr std::size_t most_elements = 4095, most_workspace = std::size_t{1} << 26, meter_fields = 200;
constexpr int junk = 0xa5;  // fills uninitialised memory

struct [[gnu::packed]] Shape {
  std::uint16_t first, second;  // elements of the two chunks, or number and width of rows
  std::uint8_t row_blocks;      // blocks of 16 words in a row
  std::uint8_t messages;
  std::uint8_t faults;
  struct [[gnu::packed]] {
    std::uint16_t at;
    std::uint8_t bits;
  } fault[4];  // flipped bits in words, or behind the words in row indices
};

using Attributes = std::unordered_map<std::string, std::string>;

fcomp_t operator_called(const std::string& name) {
  for (int i = 0; i < _opRegSize(); ++i) {
    const char *found, **forward, **backward, **states;
    fcomp_t *functions, *gradients;
    createOpState_t* makers;
    int is_subgraph, count, gradient_count, state_count;
    parseAttrs_t parse;
    inferType_t type;
    inferSType_t storage;
    inferShape_t shape;
    mutateInputs_t mutate;
    _opRegGet(i, &found, &is_subgraph, &forward, &functions, &count, &backward, &gradients, &gradient_count, &states,
              &makers, &state_count, &parse, &type, &storage, &shape, &mutate);
    for (int k = 0; k < count; ++k) {
      if (name == found && std::strcmp(forward[k], "cpu") == 0) return functions[k];
    }
  }
  return expect(false, "there is such an operator"), nullptr;
}

// The arrays of a call, and the memory that the call allocates.
class Call {
 public:
  Call& dense(MXDType dtype, std::vector<std::int64_t> shape, const Room& memory) {
    inputs.emplace_back(memory.as<void>(), std::move(shape), dtype, 0, MXContext::CPU());
    return *this;
  }

  Call& rows(std::int64_t all, std::size_t width, const Room& words, const Room& numbers) {
    MXSparse& sparse = sparse_.emplace_back();
    std::int64_t shape[] = {all, static_cast<std::int64_t>(width)};
    const auto count = static_cast<std::int64_t>(numbers.size / sizeof(std::int64_t));
    sparse.set(words.as(), shape, 2, numbers.as(), count);
    inputs.emplace_back(&sparse, std::vector<std::int64_t>(shape, shape + 2), kFloat32, 0, MXContext::CPU(),
                        kRowSparseStorage);
    return *this;
  }

  // Returns the memory of a new dense output.
  const Room& returns(MXDType dtype, std::vector<std::int64_t> shape, std::size_t bytes) {
    const Room& memory = rooms_.emplace_back(bytes, junk);
    outputs.emplace_back(memory.as<void>(), std::move(shape), dtype, 0, MXContext::CPU());
    return memory;
  }

  void returns_rows(std::size_t width) { row_words_ = width; }

  // Calls the operator; returns whether it succeeds.
  bool make(const std::string& name, const Attributes& attributes) {
    const auto allocate = [](void* self, int bytes) -> void* {
      return static_cast<Call*>(self)->rooms_.emplace_back(bytes, junk).as();
    };
    const auto allocate_rows = [](void* self, int, int count, int, void** data, std::int64_t** numbers,
                                  std::int64_t**) {
      auto& call = *static_cast<Call*>(self);
      call.words = std::make_unique<Room>(count * call.row_words_ * sizeof(float), junk);
      call.numbers = std::make_unique<Room>(count * sizeof(std::int64_t), junk);
      *data = call.words->as<void>();
      *numbers = call.numbers->as<std::int64_t>();
    };
    const OpResource resource(allocate, this, nullptr, nullptr, nullptr, allocate_rows, this, nullptr, nullptr);
    return operator_called(name)(attributes, &inputs, &outputs, resource) == MX_SUCCESS;
  }

  std::vector<MXTensor> inputs, outputs;
  std::unique_ptr<Room> words, numbers;  // of the returned rows

 private:
  std::list<MXSparse> sparse_;
  std::list<Room> rooms_;
  std::size_t row_words_ = 0;
};

struct Free {
  void operator()(gluon_gc_codec* codec) const { gluon_gc_free(codec); }
};

// The rows of some messages, and the operators' attributes for them.
class Messages {
 public:
  explicit Messages(Input input) : number(input.take<std::uint8_t>()) {
    gluon_gc_traits traits{};
    std::size_t count = 0;
    while (gluon_gc_compressor(count, &traits) != nullptr) ++count;
    compressor_ = gluon_gc_compressor(input.take<std::uint8_t>() % count, &traits);
    summable = traits.summable;
    options_ = input.text();
    shape = input.take<Shape>();
    shape.first &= most_elements;
    shape.second &= most_elements;
    shape.messages = 1 + shape.messages % 3;
    input_ = input;
  }

  // Gets the needs of n elements. Returns false if there is no such codec, or if it needs too much memory.
  bool needs_of(std::size_t n, gluon_gc_needs& needs) const {
    gluon_gc_codec* codec = nullptr;
    if (gluon_gc_new(compressor_.c_str(), options_.c_str(), n, gluon_gc_float32, -1, &codec) != nullptr) return false;
    const std::unique_ptr<gluon_gc_codec, Free> owned(codec);
    gluon_gc_need(codec, &needs);
    return needs.workspace_bytes + needs.payload_bytes <= most_workspace;
  }

  // Lays messages of at most `most` bytes out in rows, and flips the bits of the faults.
  void lay_out(std::size_t most, bool varies) {
    if (varies) most += sizeof(std::uint32_t);
    const std::size_t all_words = gluon_gc_frame_words(most);
    row_words = varies ? std::min<std::size_t>(all_words, 128 * (1 + shape.row_blocks % 2)) : all_words;
    message_rows = row_words == 0 ? 1 : (all_words + row_words - 1) / row_words;
    std::vector<std::uint32_t> laid;
    std::vector<std::int64_t> numbered;
    for (int m = 0; m < shape.messages; ++m) {
      const std::size_t asked = m + 1 == shape.messages ? input_.size : input_.take<std::uint16_t>();
      const std::size_t length = std::min({asked, input_.size, most});
      const Room message(input_.bytes(length), length);
      std::vector<std::uint32_t> framed(gluon_gc_frame_words(length));
      gluon_gc_frame(message.as(), length, framed.data(), 1, -1 + 1);
      const std::size_t rows = row_words == 0 ? 0 : (framed.size() + row_words - 1) / row_words;
      framed.resize(rows * row_words, 0x40000000);
      laid.insert(laid.end(), framed.begin(), framed.end());
      for (std::size_t i = 0; i < rows; ++i) numbered.push_back(m * message_rows + i);
    }
    for (int i = 0; i < shape.faults % 5 && i < 4; ++i) flip(laid, numbered, shape.fault[i].at, shape.fault[i].bits);
    words = std::make_unique<Room>(laid.data(), laid.size() * sizeof(laid[0]));
    numbers = std::make_unique<Room>(numbered.data(), numbered.size() * sizeof(numbered[0]));
  }

  std::int64_t all_rows() const { return shape.messages * message_rows; }

  Attributes told(const std::string& more) const {
    std::ostringstream lines;
    lines << more << "arrays=1\ncount=" << int{shape.messages} << "\nrow=0\nrows=" << message_rows
          << "\nrow_words=" << row_words << "\nmessage_rows=" << message_rows << "\ncompressor=" << compressor_
          << "\ndtype=float32\nmetered=0\ngradients=1\npositions=" << positions(2);
    return {{"message", lines.str()}, {"options", options_}};
  }

  static std::string positions(int chunks) {
    std::string listed;
    for (int i = 0; i < chunks; ++i) listed += "2611923443488327891,1376283091369227076,0,";
    return listed + "\n";
  }

  // Returns the remaining bytes of the input.
  Room rest() { return Room(input_.bytes(input_.size), input_.size); }

  const std::uint8_t number;
  bool summable = false;
  Shape shape;
  std::size_t row_words = 0, message_rows = 0;
  std::unique_ptr<Room> words, numbers;

 private:
  static void flip(std::vector<std::uint32_t>& laid, std::vector<std::int64_t>& numbered, std::size_t at,
                   std::uint8_t bits) {
    if (at < laid.size()) {
      laid[at] ^= std::uint32_t{bits} << 24;
    } else if (at - laid.size() < numbered.size()) {
      numbered[at - laid.size()] ^= static_cast<std::int8_t>(bits);
    }
  }

  std::string compressor_, options_;
  Input input_{};
};

std::string listed(std::initializer_list<std::size_t> numbers) {
  std::string text;
  for (const std::size_t number : numbers) text += std::to_string(number) + ",";
  return text;
}

// Reads the byte parts of two chunks: unframes them, counts the rows left, and copies the rows.
void read_parts(Messages& given) {
  gluon_gc_needs needs[2];
  std::string parts;
  std::size_t most = 0;
  bool varies = false;
  for (int i = 0; i < 2; ++i) {
    if (!given.needs_of(i == 0 ? given.shape.first : given.shape.second, needs[i])) return;
    most += needs[i].payload_bytes;
    parts += std::to_string(needs[i].payload_bytes);
    if (needs[i].length_at >= 0) parts += "@" + std::to_string(needs[i].length_at), varies = true;
    parts += ";";
  }
  if (most == 0) return;
  given.lay_out(most, varies);
  const Attributes told = given.told("parts=" + parts + "\n");
  const std::int64_t count = given.shape.messages;

  Call unframe;
  unframe.rows(given.all_rows(), given.row_words, *given.words, *given.numbers);
  for (const gluon_gc_needs& part : needs) {
    unframe.returns(kUint8, {count, static_cast<std::int64_t>(part.payload_bytes)}, count * part.payload_bytes);
  }
  const bool unframed = unframe.make("gluon_gc_unframe", told);

  Call left;
  const std::int64_t others = count * static_cast<std::int64_t>(given.message_rows - 1);
  const Room& numbers = left.rows(given.all_rows(), given.row_words, *given.words, *given.numbers)
                            .returns(kInt64, {others}, others * sizeof(std::int64_t));
  const bool counted = left.make("gluon_gc_rows_left", told);
  expect(counted || !unframed, "the rows of what can be unframed are counted");
  for (std::int64_t i = 0; counted && i < others; ++i) {
    const std::int64_t number = numbers.as<std::int64_t>()[i];
    expect(number >= 0 && number < given.all_rows(), "rows are of those that there are");
  }

  Call keep;
  std::vector<std::int64_t> all(given.all_rows());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const Room kept_words(all.size() * given.row_words * sizeof(float)), kept(all.data(), all.size() * sizeof(all[0]));
  keep.rows(given.all_rows(), given.row_words, *given.words, *given.numbers);
  keep.rows(given.all_rows(), given.row_words, kept_words, kept).returns(kInt64, {1}, sizeof(std::int64_t));
  keep.make("gluon_gc_keep_rows", told);
}

// Decompresses the two chunks of a gradient; aggregates them, and decompresses the resulting message.
void read_payloads(Messages& given) {
  const std::size_t n[2] = {given.shape.first, given.shape.second};
  gluon_gc_needs needs[2];
  if (!given.needs_of(n[0], needs[0]) || !given.needs_of(n[1], needs[1])) return;
  if (needs[0].payload_bytes + needs[1].payload_bytes == 0) return;
  given.lay_out(needs[0].payload_bytes + needs[1].payload_bytes, needs[0].length_at >= 0);
  const std::string chunks = "sizes=" + listed({n[0], n[1]}) + "\ntensors=0,0,\nbegins=" + listed({0, n[0]}) + "\n";
  const Attributes told = given.told(chunks);
  const Room gradient((n[0] + n[1]) * sizeof(float));
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(n[0] + n[1])};
  const auto decompress = [&](const Room& words, const Room& numbers, const std::string& more) {
    Call call;
    call.rows(given.all_rows(), given.row_words, words, numbers).dense(kFloat32, shape, gradient);
    call.returns(kInt64, {4}, 2 * sizeof(gluon_gc_status));
    return call.make("gluon_gc_decompress", more.empty() ? told : given.told(more + chunks));
  };
  const bool decoded = decompress(*given.words, *given.numbers, "");
  if (given.summable) return;

  Call aggregate;
  aggregate.rows(given.all_rows(), given.row_words, *given.words, *given.numbers);
  std::list<Room> states;
  for (int which = 0; which < 3; ++which) {
    const auto size = [&](int i) { return which == 0 ? needs[i].momentum : needs[i].memory[which - 1]; };
    const std::size_t elements = size(0) + size(1);
    if (elements == 0) continue;
    const Room& state = states.emplace_back(elements * sizeof(float));
    aggregate.dense(kFloat32, {static_cast<std::int64_t>(elements)}, state);
  }
  aggregate.returns_rows(given.row_words);
  const bool aggregated = aggregate.make("gluon_gc_aggregate", told);
  expect(aggregated == decoded, "what is decompressed can be aggregated, and nothing else");
  if (!aggregated) return;
  const bool read = decompress(*aggregate.words, *aggregate.numbers, "count=1\n");
  expect(read, "the answer is decompressed");
}

// Decompresses a row-sparse gradient, framed or not.
void read_rows(Messages& given, bool framed) {
  const std::size_t rows = given.shape.first % 256, width = 1 + given.shape.second % 16;
  gluon_gc_needs needs;
  if (rows == 0 || !given.needs_of(rows * width, needs)) return;
  const std::size_t most = 8 + 4 * rows + needs.payload_bytes;
  std::string more = "shape=" + listed({rows, width}) + "\npayload_bytes=" + std::to_string(most) + "\n";
  Call call;
  call.returns_rows(width);
  const Room meter(meter_fields * sizeof(double)), plain = framed ? Room(0) : given.rest();
  if (framed) {
    given.lay_out(most, true);
    call.rows(given.all_rows(), given.row_words, *given.words, *given.numbers);
  } else {
    given.shape.messages = 1;
    given.message_rows = 1;
    call.dense(kUint8, {static_cast<std::int64_t>(plain.size)}, plain);
    more = "shape=" + listed({rows, width}) + "\npayload_bytes=" + std::to_string(plain.size) + "\n";
  }
  call.dense(kFloat64, {meter_fields}, meter);
  Attributes told = given.told(more + "positions=" + given.positions(1));
  if (!framed) {
    std::string& lines = told["message"];
    lines.replace(lines.find("row_words="), 3, "not");
  }
  if (!call.make("gluon_gc_rows_decompress", told)) return;
  for (std::size_t i = 0; i < call.numbers->size / sizeof(std::int64_t); ++i) {
    const auto number = static_cast<std::size_t>(call.numbers->as<std::int64_t>()[i]);
    expect(number < rows, "rows are of those that the gradient has");
  }
}

}  // namespace
}  // namespace gluon_gc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gluon_gc::Messages given({data, size});
  switch (given.number % 4) {
    case 0: gluon_gc::read_parts(given); break;
    case 1: gluon_gc::read_payloads(given); break;
    default: gluon_gc::read_rows(given, given.number % 4 == 2);
  }
  return 0;
}
