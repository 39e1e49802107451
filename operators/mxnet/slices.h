// Where the chunks of a message are in the gradients.
#pragma once

#include "chunks.h"

namespace gluon_gc {

// Of chunk i, `tensors` says which of the gradients it is of, and `begins` where it begins in it. Gradients are of
// the codecs' dtype, or float16 where that is float32.
class Slices {
 public:
  Slices(const Attributes& a, const Chunks& chunks, std::vector<MXTensor>& inputs, std::size_t first)
      : tensors_(a.list("tensors")),
        begins_(a.list("begins")),
        inputs_(inputs),
        first_(first),
        itemsize_(chunks.dtype) {
    require(tensors_.size() == chunks.all.size() && begins_.size() == chunks.all.size(),
            "tensors and begins must have a number for each chunk");
    for (std::size_t i = 0; i < chunks.all.size(); ++i) {
      MXTensor& x = inputs.at(first + tensors_[i]);
      require(begins_[i] + chunks.all[i].n <= static_cast<std::size_t>(x.size()),
              "a chunk ends behind its gradient");
      const bool wide = x.dtype == (itemsize_ == sizeof(double) ? mxnet::ext::kFloat64 : mxnet::ext::kFloat32);
      require(wide || is_half(i), "a gradient has another dtype than its chunks");
      converted_bytes.push_back(is_half(i) ? chunks.all[i].n * sizeof(float) : 0);
    }
  }

  bool is_half(std::size_t i) const {
    return itemsize_ == sizeof(float) && inputs_[first_ + tensors_[i]].dtype == mxnet::ext::kFloat16;
  }

  void* at(std::size_t i) const {
    const std::size_t itemsize = is_half(i) ? sizeof(std::uint16_t) : itemsize_;
    return static_cast<char*>(inputs_[first_ + tensors_[i]].data_ptr) + begins_[i] * itemsize;
  }

  std::size_t most_converted_bytes() const {
    return *std::max_element(converted_bytes.begin(), converted_bytes.end());
  }

  std::vector<std::size_t> converted_bytes;  // room for each chunk of float16 in float32

 private:
  const std::vector<std::size_t> tensors_, begins_;
  std::vector<MXTensor>& inputs_;
  const std::size_t first_, itemsize_;
};

}  // namespace gluon_gc
