// buckets.h: tensors that several devices use at once. Each device has copies of its own, which draw operators there,
// and one gradient comes home to each tensor.
//
// Tensors of one home and type cross together, as a bucket (core/placement/bucket.c). From their local pieces, the
// autograd nodes towards the tensors are:
//   GradientHere  of a bucket and a device: begins the copy of its gradients to the bucket's home
//   GradientHome  of a bucket: adds what has come, in the order of the devices, and leads to the tensors
// The edge between them carries no gradient, so the engine makes no stream wait for another device. It runs
// GradientHome when all parts of the pass that lead there have ended.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "torch/tensor/replica.h"

namespace managed {

// Where a tensor lies in the flat copy of its bucket.
struct Member {
  std::size_t index; // among the tensors of Buckets::spread()
  std::vector<int64_t> sizes, strides;
  int64_t offset, numel;
};

// Invariants: the members lie one after the other and fill the flat copy; they are dense and on `home`.
struct BucketLayout {
  c10::Device home;
  c10::ScalarType type;
  int64_t numel = 0;
  bool relayed = false; // goes in parts through the other devices, so that no link carries more than another
  std::vector<Member> members;
  std::vector<c10::Device> devices; // their order is that of sums
};

// The copies of some tensors. It does not keep the tensors alive: Python's collector could not see that. One thread at
// a time may use an object; it may die in any.
class Buckets {
 public:
  explicit Buckets(std::vector<c10::Device> devices) : devices_(std::move(devices)) {}
  // Returns local pieces of the tensors for each device, and begins the copies that they need; only their uses wait.
  // What was not written since the last call, for the same tensors, is not sent again. With grad mode on, gradients of
  // pieces come home to tensors that require them. A tensor that cannot be a member stands for itself.
  std::vector<std::vector<at::Tensor>> spread(const std::vector<at::Tensor>& tensors);

 private:
  struct Bucket {
    std::shared_ptr<BucketLayout> layout;
    std::vector<at::Tensor> flats; // by device; undefined at home
    std::vector<SourceMark> of_members, of_flats; // when they were equal; empty: they were not
  };
  bool is_grouped(const std::vector<at::Tensor>& tensors) const;
  void group(const std::vector<at::Tensor>& tensors);
  bool is_sent(const Bucket& bucket, const std::vector<at::Tensor>& tensors) const;
  void send(Bucket& bucket, const std::vector<at::Tensor>& tensors);
  void hand_out(const Bucket& bucket, std::vector<std::vector<at::Tensor>>& pieces) const;

  std::vector<c10::Device> devices_;
  std::vector<Bucket> buckets_;
  std::vector<bool> alone_; // by tensor: whether it is no member
};

} // namespace managed
