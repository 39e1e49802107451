// The fuzz harness of the compressor COMPRESSOR (a macro). A payload from a network is rejected, or it is decoded,
// aggregated and compressed again within bounds, with equal results for every instruction set.
//
// An input consists of the codec's options as text, ended by a zero byte; two bytes that determine n; a byte of flags;
// the bytes of Settings; and payloads, each after its length in two bytes. The last payload has no length.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/abi.h"
#include "fuzz.h"

namespace gluon_gc {
namespace {

constexpr std::size_t most_workspace = std::size_t{1} << 26;
constexpr std::size_t size_of_needs = offsetof(gluon_gc_needs, length_at) + sizeof(int);  // without the padding
constexpr int junk = 0xa5;  // fills uninitialised memory

// Mostly small sizes, because they are fast; rarely several blocks, at most 130,560 elements.
std::size_t elements(std::uint16_t size) {
  return size < 0xe000 ? size % 256 : size < 0xff00 ? size % 4096 : (size - 0xff00) * 512;
}

struct Settings {
  std::uint8_t draws, scale, ratio;
};

struct Case {
  explicit Case(Input input) : options(input.text()) {
    n = elements(input.take<std::uint16_t>());
    const auto flags = input.take<std::uint8_t>();
    dtype = flags & 1 ? gluon_gc_float64 : gluon_gc_float32;
    add = flags >> 1 & 1;
    settings = input.take<Settings>();
    for (std::size_t left = 1 + (flags >> 2 & 3); left != 0; --left) {
      const std::size_t asked = left == 1 ? input.size : input.take<std::uint16_t>();
      const std::size_t length = std::min(asked, input.size);
      payloads.emplace_back(input.bytes(length), length);
    }
  }

  std::string options;
  std::size_t n;
  gluon_gc_dtype dtype;
  bool add;
  Settings settings;
  std::vector<Room> payloads;
};

// A codec of one instruction set, and all memory for its calls.
class Decoder {
 public:
  Decoder(const Case& given, int isa) : given_(given) {
    gluon_gc_codec* made = nullptr;
    const char* const refusal = gluon_gc_new(COMPRESSOR, given.options.c_str(), given.n, given.dtype, isa, &made);
    codec_.reset(made);
    expect((refusal == nullptr) == (made != nullptr), "there is a codec, or a refusal");
    if (refusal != nullptr) problem = refusal;
    if (made != nullptr) gluon_gc_need(made, &needs);
    if (!too_large()) workspace_ = std::make_unique<Room>(needs.workspace_bytes, junk);
  }

  bool too_large() const { return needs.workspace_bytes + needs.payload_bytes > most_workspace; }

  // Whether each payload is valid: by itself, and in a slot for the longest payload, where it is afterwards.
  std::vector<int> verdicts() {
    slots_ = std::make_unique<Room>(given_.payloads.size() * needs.payload_bytes, junk);
    std::vector<int> verdicts;
    for (const Room& payload : given_.payloads) {
      std::uint8_t* const slot = slots_->as() + verdicts.size() / 2 * needs.payload_bytes;
      std::memcpy(slot, payload.as(), std::min(payload.size, needs.payload_bytes));
      const int alone = gluon_gc_valid(codec_.get(), payload.as(), payload.size);
      const int there = gluon_gc_valid(codec_.get(), slot, needs.payload_bytes);
      expect(there || !alone || payload.size > needs.payload_bytes, "what is valid is so with more room behind it");
      verdicts.insert(verdicts.end(), {alone, there});
    }
    return verdicts;
  }

  // Decodes all payloads, or only the first if they can be summed as they are. Returns whether they were valid.
  bool decode(const std::vector<int>& verdicts) {
    values = std::make_unique<Room>(given_.n * given_.dtype, given_.add ? 0 : junk);
    gluon_gc_call call = this->call();
    const std::size_t count = summable() ? 1 : given_.payloads.size();
    call.payloads = slots_->as();
    call.stride = needs.payload_bytes;
    call.count = count;
    call.values = values->as();
    call.add = given_.add;
    bool valid = true;
    for (std::size_t i = 0; i < count; ++i) valid = valid && verdicts[2 * i + 1];
    const char* const refusal = gluon_gc_decompress(&call, 1);
    if (refusal != nullptr && std::strstr(refusal, "learning rates of workers differ") != nullptr) {
      expect(ratios_differ(count), "learning rates differ where it is said");
      return false;
    }
    expect((refusal == nullptr) == valid, "what is valid is decoded, and nothing else");
    if (refusal != nullptr) return false;
    decoded_status = status_;
    expect(status_.bytes <= count * needs.payload_bytes, "no more bytes are in use than there are");
    expect(gluon_gc_inspect(&call, 1) == nullptr, "what is decoded can be inspected");
    expect(status_.bytes == decoded_status.bytes && status_.finite == decoded_status.finite, "with the same status");
    return true;
  }

  // Compresses the sum of the payloads if the compressor aggregates. Then compresses the decoded values, with momentum,
  // and with the decoded values as the residual.
  void compress_again() {
    keep_state();
    gluon_gc_call call = this->call();
    if (needs.memory[0] != 0) {
      call.values = values->as();
      expect(gluon_gc_restore(&call, 1) == nullptr, "any residual can be restored");
    }
    if (!summable()) {
      call.payloads = slots_->as();
      call.stride = needs.payload_bytes;
      call.count = given_.payloads.size();
      expect(gluon_gc_aggregate(&call, 1) == nullptr, "what is decoded can be aggregated");
      check_made();
    }
    call.values = values->as();
    expect(gluon_gc_compress(&call, 1) == nullptr, "anything can be compressed");
    check_made();
    if (needs.memory[0] != 0) {
      call.values = residual_.emplace_back(given_.n * given_.dtype, junk).as();
      expect(gluon_gc_residual(&call, 1) == nullptr, "there is a residual");
    }
  }

  // Expects the same results as those of another instruction set.
  void expect_same(const Decoder& other) const {
    const auto same = [&](const Room& a, const Room& b) { return same_values(a, b, given_.dtype); };
    expect(same(*values, *other.values), "every instruction set decodes to the same values");
    expect(made_.size() == other.made_.size(), "every instruction set makes as many payloads");
    for (std::size_t i = 0; i < made_.size(); ++i) {
      expect(made_[i] == other.made_[i], "every instruction set makes the same payload");
      expect(same(made_values_[i], other.made_values_[i]), "which decodes to the same");
    }
    for (std::size_t i = 0; i < residual_.size(); ++i) {
      expect(same(residual_[i], other.residual_[i]), "every instruction set keeps the same residual");
    }
    if (momentum_) expect(same(*momentum_, *other.momentum_), "every instruction set keeps the same momentum");
  }

  void add_results_to_digest() const {
    add_to_digest(&decoded_status, sizeof(decoded_status));
    add_values_to_digest(*values, given_.dtype);
    for (const std::string& payload : made_) add_to_digest(payload.data(), payload.size());
    for (const Room& room : made_values_) add_values_to_digest(room, given_.dtype);
    for (const Room& room : residual_) add_values_to_digest(room, given_.dtype);
    if (momentum_) add_values_to_digest(*momentum_, given_.dtype);
  }

  gluon_gc_needs needs{};
  std::string problem;  // why there is no codec
  gluon_gc_status decoded_status{};
  std::unique_ptr<Room> values;

 private:
  struct Free {
    void operator()(gluon_gc_codec* codec) const { gluon_gc_free(codec); }
  };

  static bool summable() {
    gluon_gc_traits traits{};
    for (std::size_t i = 0; const char* name = gluon_gc_compressor(i, &traits); ++i) {
      if (std::strcmp(name, COMPRESSOR) == 0) return traits.summable;
    }
    return expect(false, "the compressor is in the registry"), false;
  }

  // Whether the payloads start with different ratios, which some feedback puts there.
  bool ratios_differ(std::size_t count) const {
    const std::uint8_t* const first = slots_->as();
    for (std::size_t i = 1; i < count; ++i) {
      if (std::memcmp(first + i * needs.payload_bytes, first, sizeof(double)) != 0) return true;
    }
    return false;
  }

  gluon_gc_call call() {
    gluon_gc_call call{};
    call.codec = codec_.get();
    call.scale = std::ldexp(1.0, given_.settings.scale % 8 - 4);
    call.ratio = 1 + given_.settings.ratio % 3 / 2.0;
    call.position = {{0x243f6a8885a308d3, 0x13198a2e03707344}, given_.settings.draws};
    call.workspace = workspace_->as();
    call.status = &status_;
    call.threads = 1;
    if (momentum_) call.state.momentum = momentum_->as();
    for (std::size_t i = 0; i < memory_.size(); ++i) call.state.memory[i] = memory_[i].as();
    if (payload_) call.payload = payload_->as();
    return call;
  }

  void keep_state() {
    const std::size_t itemsize = given_.dtype;
    momentum_ = std::make_unique<Room>(needs.momentum * itemsize);
    for (const std::size_t elements : needs.memory) memory_.emplace_back(elements * itemsize);
    payload_ = std::make_unique<Room>(needs.payload_bytes, junk);
  }

  // Expects that the new payload is valid, also without room behind it, and can be decoded. Its bits are kept only if
  // it is finite, because the bits of a NaN are not defined.
  void check_made() {
    expect(status_.bytes <= needs.payload_bytes, "no payload is longer than the longest");
    const Room made(payload_->as(), status_.bytes);
    expect(gluon_gc_valid(codec_.get(), made.as(), made.size), "what is made is valid");
    const std::string bits(reinterpret_cast<const char*>(made.as()), made.size);
    const gluon_gc_status wrote = status_;
    gluon_gc_call call = this->call();
    call.values = made_values_.emplace_back(given_.n * given_.dtype, junk).as();
    call.payloads = payload_->as();
    call.stride = needs.payload_bytes;
    call.count = 1;
    expect(gluon_gc_decompress(&call, 1) == nullptr, "what is made is decoded");
    expect(status_.bytes == wrote.bytes, "with its own length");
    expect(given_.n == 0 || wrote.finite || !status_.finite, "what is not finite shows where it is decoded");
    made_.push_back(wrote.finite ? bits : std::string());
  }

  const Case& given_;
  std::unique_ptr<gluon_gc_codec, Free> codec_;
  std::unique_ptr<Room> slots_, workspace_, momentum_, payload_;
  gluon_gc_status status_{};
  std::vector<std::string> made_;
  std::vector<Room> memory_, made_values_, residual_;
};

void run(const Case& given) {
  std::unique_ptr<Decoder> first;
  std::vector<int> expected;
  for (int isa = 0; isa <= gluon_gc_best_isa(); ++isa) {
    auto decoder = std::make_unique<Decoder>(given, isa);
    if (isa == 0) first = std::move(decoder);
    Decoder& of_isa = isa == 0 ? *first : *decoder;
    expect(of_isa.problem == first->problem, "every instruction set refuses the same options");
    if (isa == 0) add_to_digest(first->problem.data(), first->problem.size());
    if (!of_isa.problem.empty()) continue;
    expect(std::memcmp(&of_isa.needs, &first->needs, size_of_needs) == 0, "all have the same needs");
    if (of_isa.too_large()) return;
    const std::vector<int> verdicts = of_isa.verdicts();
    if (isa == 0) {
      expected = verdicts;
      add_to_digest(verdicts.data(), verdicts.size() * sizeof(int));
    }
    expect(verdicts == expected, "every instruction set finds the same payloads valid");
    if (!of_isa.decode(verdicts)) continue;
    of_isa.compress_again();
    if (isa == 0) first->add_results_to_digest();
    else of_isa.expect_same(*first);
  }
}

}  // namespace
}  // namespace gluon_gc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gluon_gc::run(gluon_gc::Case({data, size}));
  return 0;
}
