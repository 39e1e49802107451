// Where the chunks of a message lie in the gradients.
#pragma once

#include "chunks.h"

namespace gluon_gc {

// Chunk i begins at element begins[i] of gradient tensors[i]; both lists are attributes. Gradients have the dtype of
// the codecs, or float16 if the codecs are float32.
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
              "a chunk ends after its gradient");
      const bool wide = x.dtype == (itemsize_ == sizeof(double) ? mxnet::ext::kFloat64 : mxnet::ext::kFloat32);
      require(wide || is_half(i), "a gradient and its chunks have different dtypes");
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

  std::vector<std::size_t> converted_bytes;  // of each float16 chunk in float32; 0 for other chunks

 private:
  const std::vector<std::size_t> tensors_, begins_;
  std::vector<MXTensor>& inputs_;
  const std::size_t first_, itemsize_;
};

}  // namespace gluon_gc
