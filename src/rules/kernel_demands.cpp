#include "rules/kernel_demands.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Reduction.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <unordered_map>

#include "core/bind.h"
#include "core/wrapper.h"

namespace tower::rules {
namespace {

using at::Scalar;

// What kernels said against combinations of dtypes, by operator and combination; empty: nothing.
class KernelDtypes {
 public:
  static KernelDtypes& of_process() {
    static KernelDtypes& instance = *new KernelDtypes;
    return instance;
  }
  std::optional<std::string> find(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    const auto found = known_.find(key);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }
  void put(const std::string& key, const std::string& refusal) {
    const std::scoped_lock lock(mutex_);
    known_.emplace(key, refusal);
  }

 private:
  std::mutex mutex_;  // kernels run outside of it
  std::unordered_map<std::string, std::string> known_;
};

Tensor zeros_like_one_of(const Tensor& all, const Sizes& sizes) {
  return at::zeros(sizes, at::TensorOptions().dtype(all.scalar_type()).device(all.device()));
}

// The kernel's words against the dtypes. What else it says is about shapes or values, which zeros are no test of.
std::string refusal_of_dtypes(const Example& e) {
  DispatchGuard keys;
  keys.see_no_operator();
  keys.skip_libtorch_autograd();
  try {
    Stack stack;
    for (size_t i = 0; i < e.op().num_args(); ++i)
      stack.push_back(e.has(i) ? IValue(zeros_like_one_of(e[i].toTensor(), e.sizes(i))) : e[i]);
    e.op().handle()->callBoxed(stack);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    for (const char* words : {"not implemented for", "expected scalar type", "same dtype", "same type",
                              "Expected dtype", "expected target dtype"})
      if (text.find(words) != std::string::npos) return text;
  }
  return "";
}

// ---- what several demand ----

// Also of tensors without dimensions: only on the CPU do they go with those of other devices, and not with all kernels.
void demand_one_device(const Example& e, bool numbers_go) {
  std::optional<at::Device> device;
  for (const uint8_t i : e.op().tensor_args()) {
    if (!e.has(i) || (numbers_go && e.dim(i) == 0 && e.device(i).is_cpu())) continue;
    TORCH_CHECK(!device || *device == e.device(i),
                "Expected all tensors to be on the same device, but found at least two, ", *device, " and ",
                e.device(i));
    device = e.device(i);
  }
}

// From Python such masks do not come here; from C++ LibTorch fails an internal assertion, or leaves them out.
void demand_masks_with_dimensions(const std::vector<Meta>& indices) {
  for (const Meta& t : indices)
    TORCH_CHECK_INDEX(t.dim() > 0 || (t.dtype != at::kBool && t.dtype != at::kByte),
                      "index: a mask must have dimensions, but has none. Use where(), or unsqueeze(0) both.");
}

// ---- by family ----

void of_losses() {
  demands<at::_ops::mse_loss>(demand_kernel_dtypes);
  demands<at::_ops::huber_loss>(demand_kernel_dtypes);
  demands<at::_ops::smooth_l1_loss>(demand_kernel_dtypes);
  // LibTorch computes in place, in what was made like the input.
  demands<at::_ops::soft_margin_loss>([](const Example& e) {
    demand_castable(c10::promoteTypes(e.dtype(0), e.dtype(1)), e.dtype(0));
    demand_castable(c10::promoteTypes(e.dtype(0), c10::typeMetaToScalarType(c10::get_default_dtype())), e.dtype(0));
  });
  demands<at::_ops::binary_cross_entropy>([](const Example& e) {
    TORCH_CHECK(e.sizes(0) == e.sizes(1), "Using a target size (", at::IntArrayRef(e.sizes(1)),
                ") that is different to the input size (", at::IntArrayRef(e.sizes(0)), ")");
  });
  demands<at::_ops::cross_entropy_loss>([](const Example& e) {
    const bool gathers = e.has(2) && e[5].toDouble() > 0 && e[3].toInt() == at::Reduction::Mean;
    TORCH_CHECK(!gathers || e.dtype(1) != at::kByte, "gather(): Expected dtype int32/int64 for index");
  });
  demands<at::_ops::ctc_loss_IntList>(demand_kernel_dtypes);
  demands<at::_ops::ctc_loss_Tensor>(demand_kernel_dtypes);
}

void of_matrices() {
  for (const char* name : {"aten::linalg_householder_product", "aten::ormqr"})
    guard(record_of(name, ""), [](const Example& e) {
      TORCH_CHECK_NOT_IMPLEMENTED(e.dtype(0) != at::kHalf && e.dtype(0) != at::kBFloat16, e.op().name(),
                                  " not implemented for '", e.dtype(0), "'");
    });
  // LibTorch broadcasts rows with batches where the one has a dimension more.
  demands<at::_ops::linalg_lstsq>([](const Example& e) {
    const Sizes a = e.sizes(0), b = e.sizes(1);
    const bool vectors = a.size() == b.size() + 1 && std::equal(b.begin(), b.end(), a.begin());
    TORCH_CHECK(vectors || b.size() == 1 || a.size() == b.size(), "torch.linalg.lstsq: input of shape ",
                at::IntArrayRef(a), " and other of shape ", at::IntArrayRef(b),
                " must have as many dimensions, or other be a batch of vectors");
    const bool solves = vectors || b.size() < 2 || b.back() > 0;  // without columns LAPACK's routine dies
    TORCH_CHECK(solves || e[3].isNone() || e[3].toStringRef() != "gelss",
                "torch.linalg.lstsq: other has no columns, which the driver 'gelss' does not take. Use 'gelsd'.");
  });
  demands<at::_ops::addmm>([](const Example& e) { demand_one_device(e, /*numbers_go=*/true); });
  demands<at::_ops::addr>([](const Example& e) {
    const auto type = c10::promoteTypes(e.dtype(0), c10::promoteTypes(e.dtype(1), e.dtype(2)));
    for (const size_t i : {3, 4}) {
      const Scalar factor = e[i].toScalar();
      TORCH_CHECK(!factor.isBoolean() || type == at::kBool, "Boolean ", e.op().argument_name(i),
                  " only supported for Boolean results.");
      TORCH_CHECK(!at::isIntegralType(type, /*includeBool=*/true) || factor.isIntegral(/*includeBool=*/true),
                  "For integral input tensors, argument ", e.op().argument_name(i),
                  " must not be a floating point number.");
    }
  });
  demands<at::_ops::convolution>([](const Example& e) {
    const int64_t spatial = e.dim(1) - 2;
    for (const size_t i : {3, 4, 5, 7}) {
      const auto list = e[i].toIntVector();
      TORCH_CHECK(list.size() == 1 || static_cast<int64_t>(list.size()) == spatial, "expected ",
                  e.op().argument_name(i), " to be a single integer value or a list of ", spatial,
                  " values to match the convolution dimensions, but got ", e.op().argument_name(i), "=",
                  at::IntArrayRef(list));
    }
    if (e.has(2)) demand_castable(e.dtype(2), e.dtype(1));
  });
}

void of_reductions() {
  demands<at::_ops::_cdist_forward>([](const Example& e) {
    TORCH_CHECK(e[2].toDouble() >= 0, "cdist only supports non-negative p values");
    demand_kernel_dtypes(e);
  });
  demands<at::_ops::_euclidean_dist>([](const Example& e) { demand_same_dtype(e, {0, 1}); });
  demands<at::_ops::_pdist_forward>(demand_kernel_dtypes);
  demands<at::_ops::logsumexp>([](const Example& e) {
    const bool none = e[1].toIntVector().empty() && !e[2].toBool();  // LibTorch's kernel keeps the dimensions then
    TORCH_CHECK(!none || e.dim(0) == 0, "output with shape [] doesn't match the broadcast shape ",
                std::vector<int64_t>(e.sizes(0).size(), 1));
  });
  for (const char* overload : {"bin_ct", "bins_tensor"})
    guard(record_of("aten::histogram", overload), demand_kernel_dtypes);
  // As LibTorch, which does not wait for a device to find out.
  for (const char* name : {"aten::quantile", "aten::nanquantile"})
    guard(record_of(name, ""), [](const Example& e) {
      Tensor q = e[1].toTensor();
      TORCH_CHECK(q.device() == e.device(0), "quantile() q tensor must be on the same device as the input tensor");
      while (Wrapper* w = as_wrapper(q)) q = Tensor(w->payload().value);  // all examples; a copy, the wrapper may go
      if (!q.is_cpu()) return;
      DispatchGuard keys;
      keys.see_no_operator();
      TORCH_CHECK(q.ge(0).logical_and(q.le(1)).all().item<bool>(), "quantile() q values must be in the range [0, 1]");
    });
}

void of_indices() {
  demands<at::_ops::index_add>([](const Example& e) { demand_one_device(e, /*numbers_go=*/false); });
  demands<at::_ops::index_copy>([](const Example& e) { demand_one_device(e, /*numbers_go=*/false); });
  demands<at::_ops::index_reduce>(demand_kernel_dtypes);
  demands<at::_ops::index_fill_int_Scalar>(demand_kernel_dtypes);
  demands<at::_ops::index_fill_int_Tensor>(demand_kernel_dtypes);
  demands<at::_ops::index_select>([](const Example& e) {
    TORCH_CHECK(e.dtype(2) == at::kLong || e.dtype(2) == at::kInt,
                "index_select(): Expected dtype int32 or int64 for index, but got ", e.dtype(2));
  });
  demands<at::_ops::index_Tensor>([](const Example& e) { demand_masks_with_dimensions(e.list(1)); });
  demands<at::_ops::index_put>([](const Example& e) {
    const auto indices = e.list(1);
    demand_masks_with_dimensions(indices);
    const auto given = std::count_if(indices.begin(), indices.end(),
                                     [](const Meta& t) { return t.dtype != at::ScalarType::Undefined; });
    const bool bytes = std::any_of(indices.begin(), indices.end(), [](const Meta& t) { return t.dtype == at::kByte; });
    const bool fills = given == 1 && e.numel(2) == 1 && !e[3].toBool();  // by masked_fill_
    TORCH_CHECK(!fills || !bytes, "masked_fill_ only supports boolean masks, but got mask with dtype unsigned char");
  });
  for (const char* overload : {"reduce", "value_reduce"})
    guard(record_of("aten::scatter", overload), [](const Example& e) {
      const std::string reduce = e[4].toStringRef();
      TORCH_CHECK(reduce == "add" || reduce == "multiply", "reduce argument must be either add or multiply.");
    });
  for (const char* overload : {"Tensor_Scalar", "Scalar_Tensor"})
    guard(record_of("aten::isin", overload), [](const Example& e) {
      for (const uint8_t i : e.op().tensor_args())
        TORCH_CHECK(e.dtype(i) != at::kBool && !e.is_complex(i),
                    "Unsupported input type encountered for isin(): ", e.dtype(i));
    });
  for (const char* name : {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"})
    guard(record_of(name, ""), [](const Example& e) {
      TORCH_CHECK(e[4].toInt() >= 0 && e[4].toInt() <= 2, "`mode` must be sum, mean, or max.");
    });
}

void of_shapes() {
  demands<at::_ops::squeeze_dims>([](const Example& e) {
    at::dim_list_to_bitset(e[1].toIntVector(), static_cast<size_t>(e.dim(0)));  // throws where one is named twice
  });
  for (const char* name : {"aten::as_strided", "aten::as_strided_copy"})
    guard(record_of(name, ""), [](const Example& e) {
      const auto sizes = e[1].toIntVector();
      for (const int64_t size : sizes)
        TORCH_CHECK(size >= 0, e.op().name(), ": sizes must not be negative, but are ", at::IntArrayRef(sizes));
    });
  // Those without elements are left out before the kernel looks.
  demands<at::_ops::cat>([](const Example& e) {
    const auto& tensors = e[0].toListRef();
    for (const auto& t : tensors)
      TORCH_CHECK(t.toTensor().device() == tensors[0].toTensor().device(), "Tensor on device ", t.toTensor().device(),
                  " is not on the expected device ", tensors[0].toTensor().device(), "!");
  });
  demands<at::_ops::copy>([](const Example& e) {
    TORCH_CHECK(at::is_expandable_to(e.sizes(1), e.sizes(0)), "output with shape ", at::IntArrayRef(e.sizes(0)),
                " doesn't match the broadcast shape with a source of shape ", at::IntArrayRef(e.sizes(1)));
  });
  demands<at::_ops::fill_Tensor>([](const Example& e) {
    TORCH_CHECK(e.dim(1) == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", e.dim(1),
                " dimensions.");
  });
}

void of_others() {
  // A number for each example would promote as a tensor without dimensions does; the kernel does not promote.
  demands<at::_ops::lerp_Scalar>([](const Example& e) { demand_same_dtype(e, {0, 1}); });
  demands<at::_ops::lerp_Tensor>([](const Example& e) { demand_same_dtype(e, {0, 1}); });
  demands<at::_ops::rrelu>([](const Example& e) {
    for (const size_t bound : {1, 2})
      TORCH_CHECK(std::isfinite(e[bound].toScalar().toDouble()), "rrelu: ", e.op().argument_name(bound),
                  " bound must be finite, got ", e[bound].toScalar().toDouble());
  });
  demands<at::_ops::scaled_dot_product_attention>([](const Example& e) {
    TORCH_CHECK(e[4].toDouble() >= 0 && e[4].toDouble() <= 1, "dropout probability has to be between 0 and 1, but got ",
                e[4].toDouble());
  });
  demands<at::_ops::native_group_norm>([](const Example& e) {
    TORCH_CHECK(e[3].toInt() >= 0, "Trying to create tensor with negative dimension ", e[3].toInt());
  });
  demands<at::_ops::equal>([](const Example& e) {
    TORCH_CHECK_NOT_IMPLEMENTED(!e.device(0).is_meta() && !e.device(1).is_meta(),
                                "aten::equal: there are no values on the device meta to compare");
  });
}

}  // namespace

void demand_kernel_dtypes(const Example& e) {
  std::string key = e.op().name();
  for (const uint8_t i : e.op().tensor_args()) {
    if (!e.has(i)) {
      key += " -";
      continue;
    }
    if (e.numel(i) == 0 || e.device(i).is_meta()) return;  // kernels do not look at these, or are none
    key += std::string(" ") + c10::toString(e.dtype(i)) + " " + c10::DeviceTypeName(e.device(i).type());
  }
  for (size_t i = 0; i < e.op().num_args(); ++i) {  // which of its kernels the operator chooses
    if (e[i].isBool()) key += e[i].toBool() ? " true" : " false";
    if (e[i].isString()) key += " " + e[i].toStringRef();
  }
  auto refusal = KernelDtypes::of_process().find(key);
  if (!refusal) {
    refusal = refusal_of_dtypes(e);
    KernelDtypes::of_process().put(key, *refusal);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(refusal->empty(), *refusal);
}

void demand_castable(at::ScalarType from, at::ScalarType to) {
  TORCH_CHECK(at::canCast(from, to), "result type ", from, " can't be cast to the desired output type ", to);
}

void kernel_demands() {
  of_losses();
  of_matrices();
  of_reductions();
  of_indices();
  of_shapes();
  of_others();
}

}  // namespace tower::rules
