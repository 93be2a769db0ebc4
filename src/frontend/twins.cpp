#include "frontend/twins.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace tower::frontend {
namespace {

using Names = std::unordered_map<std::string, std::vector<c10::OperatorName>>;

// The dispatcher's operators by name without overload. Rebuilt when a name is not there: a library may have been
// loaded.
class Index {
 public:
  std::vector<c10::OperatorName> overloads(const std::string& name) {
    std::lock_guard lock(mutex_);
    auto found = names_.find(name);
    if (found == names_.end()) {
      const auto all = c10::Dispatcher::singleton().getAllOpNames();
      if (all.size() != size_) {
        size_ = all.size();
        names_.clear();
        for (const auto& each : all) names_[each.name].push_back(each);
        found = names_.find(name);
      }
    }
    return found == names_.end() ? std::vector<c10::OperatorName>() : found->second;
  }

 private:
  std::mutex mutex_;
  size_t size_ = 0;
  Names names_;
};

std::string base_name(const Operator& op) {
  std::string name = op.schema().name();
  if (!name.empty() && name.back() == '_' && !name.ends_with("__")) name.pop_back();
  if (name == "aten::adaptive_avg_pool3d_backward") return "aten::_adaptive_avg_pool3d_backward";
  // __iand__ and its kin are the in-place forms of __and__ …
  if (name.starts_with("aten::__i") && name.ends_with("__")) name = "aten::__" + name.substr(9);
  return name;
}

// The position of the argument of `op` that the candidate's `argument` stands for.
std::optional<int8_t> argument_like(const Operator& op, const c10::Argument& argument) {
  for (size_t i = 0; i < op.num_args(); ++i) {
    const auto& mine = op.schema().arguments()[i];
    if (!mine.is_out() && mine.name() == argument.name() && *mine.type() == *argument.type())
      return static_cast<int8_t>(i);
  }
  return std::nullopt;
}

// What a factory takes besides, when it is not given a tensor to fill.
std::optional<int8_t> option_from_out(const c10::Argument& argument) {
  if (argument.name() == "dtype") return Twin::dtype_of_out;
  if (argument.name() == "device") return Twin::device_of_out;
  if (argument.name() == "layout" || argument.name() == "pin_memory") return Twin::none;
  return std::nullopt;
}

// Where the results of a functional operator go: those that the writing one returns first, then what else it writes to.
c10::SmallVector<int8_t, 4> results_of(const Operator& op) {
  c10::SmallVector<int8_t, 4> results;
  const auto& arguments = op.schema().arguments();
  const auto is_listed = [&](size_t i) {
    return std::find(results.begin(), results.end(), static_cast<int8_t>(i)) != results.end();
  };
  for (const auto& out : op.schema().returns()) {
    results.push_back(-1);
    if (!out.alias_info()) continue;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (writes_to(op, i) && *arguments[i].alias_info() == *out.alias_info()) results.back() = static_cast<int8_t>(i);
  }
  for (size_t i = 0; i < arguments.size(); ++i)
    if (writes_to(op, i) && !is_listed(i)) results.push_back(static_cast<int8_t>(i));
  return results;
}

std::optional<Twin> fits(const Operator& op, const c10::OperatorHandle& candidate) {
  Twin twin;
  size_t taken = 0, given = 0;
  for (size_t i = 0; i < op.num_args(); ++i) given += !is_out_argument(op, i);
  for (const auto& argument : candidate.schema().arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) return std::nullopt;
    auto source = argument_like(op, argument);
    taken += source.has_value();
    if (!source && op.schema().arguments().back().is_out()) source = option_from_out(argument);
    if (!source) return std::nullopt;
    twin.arguments.push_back(*source);
  }
  twin.results = results_of(op);
  if (taken != given || candidate.schema().returns().size() != twin.results.size()) return std::nullopt;
  twin.op = &Operator::of(candidate);
  return twin;
}

// Operators that write to their arguments and are refused by name, and those of kinds that transforms cannot carry.
const char* refusal_of(const Operator& op, bool has_twin) {
  static const std::unordered_map<std::string, const char*> reasons{
      {"aten::requires_grad_",
       "it asks LibTorch's autograd to record, which does not see inside of transforms. Make the tensor an argument "
       "that grad, vjp or jacrev differentiates."},
      {"aten::retain_grad",
       "it asks LibTorch's autograd to keep a gradient, which does not see inside of transforms. Return the tensor and "
       "differentiate with respect to it."},
      {"aten::set_data",
       "it gives a tensor other memory, past what the transform tracks. Use copy_() to change its values."},
      {"aten::shallow_copy_data_",
       "it gives a tensor other memory, past what the transform tracks. Use copy_() to change its values."},
      {"aten::set_",
       "it gives a tensor other memory, past what the transform tracks. Use copy_() to change its values, or a view."},
      {"aten::record_stream", "it is about the memory of one tensor, and a tensor inside a transform may have none."},
      {"aten::_cummax_helper", "it is a kernel that reads and writes raw memory. Use cummax()."},
      {"aten::_cummin_helper", "it is a kernel that reads and writes raw memory. Use cummin()."},
      {"aten::_sobol_engine_ff_", "it is a kernel that reads and writes raw memory. Draw outside of the transform."},
      {"aten::_sobol_engine_initialize_state_",
       "it is a kernel that reads and writes raw memory. Draw outside of the transform."},
      {"aten::_sobol_engine_scramble_",
       "it is a kernel that reads and writes raw memory. Draw outside of the transform."},
      {"aten::from_file", "it ties a tensor to a file. Open the file outside of the transform."},
      {"aten::_fill_mem_eff_dropout_mask_",
       "it is a part of a fused attention kernel for CUDA. Use scaled_dot_product_attention()."},
      {"aten::_flash_attention_forward_no_dropout_inplace",
       "it is a part of a fused attention kernel for CUDA. Use scaled_dot_product_attention()."},
      {"aten::_slow_conv2d_backward", "it is a kernel of convolution's derivative. Use convolution_backward()."},
      {"aten::fbgemm_linear_fp16_weight", "its weight is packed by another library. Use linear()."},
      {"aten::fbgemm_linear_fp16_weight_fp32_activation", "its weight is packed by another library. Use linear()."},
  };
  const auto found = reasons.find(op.schema().name());
  if (found != reasons.end()) return found->second;
  if (has_twin) return nullptr;
  for (const char* part : {"quantize", "fake_quant", "sparse", "efficientzero", "cudnn"})
    if (op.schema().name().find(part) != std::string::npos)
      return "it makes tensors of a kind that transforms cannot carry (sparse, quantized, or of another backend).";
  return nullptr;
}

std::optional<Twin> search(const Operator& op) {
  static auto* index = new Index;
  const std::string base = base_name(op);
  for (const std::string& name : {base, base + "_functional"})
    for (const auto& overload : index->overloads(name))
      if (auto handle = c10::Dispatcher::singleton().findSchema(overload))
        if (auto twin = fits(op, *handle)) return twin;
  return std::nullopt;
}

Twin find_twin(const Operator& op) {
  Twin twin = search(op).value_or(Twin());
  twin.refused = refusal_of(op, twin.op != nullptr);
  if (!twin.op && !op.composite() && !op.decomposition && !twin.refused)
    twin.refused = "it has no functional form that could stand for it. Use a functional operator.";
  return twin;
}

}  // namespace

const Twin& twin_of(const Operator& op) {
  if (const void* known = op.twin.load(std::memory_order_acquire)) return *static_cast<const Twin*>(known);
  // Two threads may both look; they find the same.
  const void* expected = nullptr;
  auto* found = new Twin(find_twin(op));
  if (!op.twin.compare_exchange_strong(expected, found, std::memory_order_acq_rel)) {
    delete found;
    return *static_cast<const Twin*>(expected);
  }
  return *found;
}

}  // namespace tower::frontend
