#include "mesh/reduction.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace tower::mesh {
namespace {

// NCCL and gloo reduce no complex numbers.
Tensor as_reals(const Tensor& t) { return t.is_complex() ? at::view_as_real(t.resolve_conj()) : t; }
int64_t numbers_in(const Tensor& t) { return t.is_complex() ? 2 * t.numel() : t.numel(); }

// Between a tensor and its place in a message: of many small ones, LibTorch's calls would take longer than the sum.
void copy(const Tensor& t, const Tensor& message, int64_t begin, bool out) {
  if (t.is_cpu() && t.is_contiguous() && !t.is_conj() && !t.is_neg()) {
    auto* place = static_cast<char*>(message.mutable_data_ptr()) + begin * static_cast<int64_t>(message.itemsize());
    if (out) std::memcpy(t.mutable_data_ptr(), place, t.nbytes());
    else std::memcpy(place, t.const_data_ptr(), t.nbytes());
    return;
  }
  const Tensor reals = as_reals(t), place = message.narrow(0, begin, reals.numel()).view(reals.sizes());
  if (out) reals.copy_(place);
  else place.copy_(reals);
}

// NOTE [Numbers that backends reduce]
// What fits into first messages is reduced by LibTorch's operators, and what is sent by a backend means the same. But
// gloo knows neither bool nor int16, adds float16 with a rounding for each process, and its max and min, as those of
// other backends, lose what is no number. So narrow types are sent as wider ones, and extrema of floating-point
// numbers as integers of their size which are in the same order, with NaN beyond all.
bool narrow_float(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

at::ScalarType integer_of(at::ScalarType floating) { return floating == at::kDouble ? at::kLong : at::kInt; }

// Integers whose order is that of the numbers with these bits, and back: the sign is told by one bit, and the others
// grow with the absolute value. Each of the most and the least integer is the bits of a NaN.
Tensor turn_negative(const Tensor& bits) {
  const bool is_long = bits.scalar_type() == at::kLong;
  const at::Scalar most =
      is_long ? at::Scalar(std::numeric_limits<int64_t>::max()) : at::Scalar(std::numeric_limits<int32_t>::max());
  return at::where(bits.lt(0), bits.bitwise_xor(most), bits);
}

Tensor as_sent(const Tensor& numbers, Reduction::Kind kind) {
  const at::ScalarType type = numbers.scalar_type();
  if (type == at::kBool || type == at::kShort) return numbers.to(at::kInt);
  const Tensor wide = narrow_float(type) ? numbers.to(at::kFloat) : numbers;
  if (kind == Reduction::Kind::SUM || !wide.is_floating_point()) return wide;
  const at::ScalarType integers = integer_of(wide.scalar_type());
  const bool largest = kind == Reduction::Kind::MAX;
  const Tensor beyond =
      wide.scalar_type() == at::kDouble
          ? at::scalar_tensor(largest ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min(),
                              at::kLong)
          : at::scalar_tensor(largest ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int32_t>::min(),
                              at::kInt);
  return at::where(wide.isnan(), beyond.to(wide.device()), turn_negative(wide.view(integers)));
}

Tensor as_received(const Tensor& sent, Reduction::Kind kind, at::ScalarType type) {
  if (kind == Reduction::Kind::SUM || !c10::isFloatingType(type)) return sent.to(type);
  return turn_negative(sent).view(type == at::kDouble ? at::kDouble : at::kFloat).to(type);
}

}  // namespace

bool Reduction::can_do(Kind kind, at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte:
    case at::kBool:
      return true;
    default:
      return c10::isComplexType(type) && kind == Kind::SUM;
  }
}

Reduction::Reduction(Wire& wire, const char* name, int64_t number, Kind kind, const Tensors& tensors)
    : wire_(wire), kind_(kind), tensors_(tensors) {
  for (size_t k = 0; k < tensors.size(); ++k) {
    const Tensor& t = tensors[k];
    const at::ScalarType type = c10::toRealValueType(t.scalar_type());
    const auto found = std::find_if(bundles_.begin(), bundles_.end(),
                                    [&](const Bundle& b) { return b.type == type && b.device == t.device(); });
    Bundle& bundle = found != bundles_.end() ? *found : bundles_.emplace_back(Bundle{type, t.device()});
    bundle.members.push_back(k);
    bundle.numel += numbers_in(t);
  }
  int64_t bytes = 0;
  bool together = true;  // on one device
  for (Bundle& b : bundles_) {
    b.begin = bytes;
    bytes += aligned(b.bytes());
    together = together && b.device == bundles_[0].device;
  }
  first_message_.emplace(wire, Mark(name, tensors, Alike::whole).add(kind), number, bytes, bundles_[0].device);
  for (Bundle& b : bundles_) {
    if (together && first_message_->fits()) {
      fill(b, first_message_->place(b.begin, b.bytes()).view(b.type));
    } else {
      b.message = {at::empty({b.numel}, at::device(b.device).dtype(b.type))};
      fill(b, b.message[0]);
      if (wire.size > 1) b.message[0] = as_sent(b.message[0], kind);
    }
  }
  first_message_->begin();
}

void Reduction::fill(const Bundle& bundle, const Tensor& message) const {
  int64_t begin = 0;
  for (const size_t k : bundle.members) {
    copy(tensors_[k], message, begin, /*out=*/false);
    begin += numbers_in(tensors_[k]);
  }
}

bool Reduction::go_on() {
  if (!first_message_->agreed()) return false;
  c10d::AllreduceOptions options;
  options.reduceOp = kind_;
  for (Bundle& b : bundles_)
    if (!b.message.empty() && wire_.size > 1) b.work = wire_.backend(b.message[0])->allreduce(b.message, options);
  return true;
}

// Of all its numbers.
Tensor Reduction::reduced(const Bundle& bundle) const {
  if (!bundle.message.empty()) {
    wait_awake(bundle.work, bundle.message[0]);
    return wire_.size > 1 ? as_received(bundle.message[0], kind_, bundle.type) : bundle.message[0];
  }
  const Tensor rows = first_message_->rows(bundle.begin, bundle.bytes()).view(bundle.type);
  if (kind_ == Kind::SUM) return rows.sum(0, /*keepdim=*/false, bundle.type);
  return kind_ == Kind::MAX ? rows.amax(0) : rows.amin(0);
}

Tensors Reduction::finish() {
  Tensors results(tensors_.size());
  for (const Bundle& b : bundles_) {
    const Tensor whole = reduced(b);
    const Tensor& first = tensors_[b.members[0]];
    if (b.members.size() == 1 && !first.is_complex()) {
      results[b.members[0]] = whole.view(first.sizes());
      continue;
    }
    int64_t begin = 0;
    for (const size_t k : b.members) {
      results[k] = at::empty(tensors_[k].sizes(), tensors_[k].options());
      copy(results[k], whole, begin, /*out=*/true);
      begin += numbers_in(tensors_[k]);
    }
  }
  return results;
}

}  // namespace tower::mesh
