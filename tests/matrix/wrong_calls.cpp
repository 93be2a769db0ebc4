#include "matrix/wrong_calls.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "op_db/op_db.h"
#include "support/compare.h"
#include "support/device.h"

namespace wrong_calls {
namespace {

namespace td = tower::dynamic;
using at::Tensor;
using op_db::Tensors;

// ---- calls with one thing wrong ----

struct Call {
  std::string what;
  op_db::Sample sample;
  Tensors tensors;

  Tensors operator()(const c10::OperatorHandle& op, const Tensors& own) const { return op_db::call(op, sample, own); }
};

bool has_derivative(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

Tensor with_last(const Tensor& t, int64_t index) {
  Tensor changed = t.clone(at::MemoryFormat::Contiguous);
  changed.view(-1).narrow(0, changed.numel() - 1, 1).fill_(index);
  return changed;
}

std::vector<std::pair<std::string, Tensor>> changed(const Tensor& t) {
  std::vector<std::pair<std::string, Tensor>> result{{"with a dimension more", t.unsqueeze(0)},
                                                     {"with a last dimension more", t.unsqueeze(-1)},
                                                     {"twice", at::stack({t, t})}};
  if (t.dim() > 0) result.emplace_back("with a dimension less", t.size(0) ? t.select(0, 0) : t.sum(0));
  for (int64_t d = 0; d < t.dim(); ++d) {
    const std::string along = " along dimension " + std::to_string(d);
    if (t.size(d) == 0) continue;
    result.emplace_back("longer" + along, at::cat({t, t.narrow(d, 0, 1)}, d));
    result.emplace_back("shorter" + along, t.narrow(d, 0, t.size(d) - 1));
  }
  for (const auto type : {at::kFloat, at::kHalf, at::kLong, at::kBool, at::kComplexDouble}) {
    const bool real = t.is_complex() && !c10::isComplexType(type);
    if (t.scalar_type() != type)
      result.emplace_back(std::string("in ") + c10::toString(type), (real ? at::real(t) : t).to(type));
  }
  if (t.numel() > 0 && at::isIntegralType(t.scalar_type(), /*includeBool=*/false))
    for (const int64_t index : {99, -99})
      result.emplace_back("with " + std::to_string(index) + " in it", with_last(t, index));
  return result;
}

// Codes, not numbers: what is none of them is not looked at by every kernel.
bool is_code(const std::string& name) {
  for (const char* code :
       {"reduction", "dtype", "layout", "device", "memory_format", "interpolation_mode", "padding_mode"})
    if (name == code) return true;
  return false;
}

std::vector<c10::IValue> other_numbers(const c10::IValue& value) {
  std::vector<c10::IValue> result;
  if (value.isInt())
    for (const int64_t step : {1, -1, 99, -99}) result.emplace_back(value.toInt() + step);
  if (value.isIntList() && value.toIntVector().size() > 0) {
    const auto own = value.toIntVector();
    for (const int64_t step : {1, -1, 99, -99}) {
      result.emplace_back(own);
      auto changed = own;
      changed.back() += step;
      result.back() = c10::IValue(changed);
    }
    result.emplace_back(std::vector<int64_t>(own.begin(), own.end() - 1));
    auto longer = own;
    longer.push_back(own.back());
    result.emplace_back(longer);
  }
  if (value.isDouble()) result.emplace_back(-1.0);
  if (value.isString()) result.emplace_back("nonsense");
  return result;
}

std::vector<Call> wrong_calls(const op_db::Entry& entry, const op_db::Sample& sample, const Tensors& tensors) {
  std::vector<Call> calls;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (auto& [what, tensor] : changed(tensors[i])) {
      calls.push_back({"tensor " + std::to_string(i) + " " + what, sample, tensors});
      calls.back().tensors[i] = tensor;
    }
    for (size_t k = 0; k < i; ++k) {
      calls.push_back({"tensors " + std::to_string(k) + " and " + std::to_string(i) + " swapped", sample, tensors});
      std::swap(calls.back().tensors[i], calls.back().tensors[k]);
    }
  }
  for (size_t a = 0; a < sample.arguments.size(); ++a) {
    if (is_code(entry.op->schema().arguments()[a].name())) continue;
    for (const auto& other : other_numbers(sample.arguments[a])) {
      calls.push_back({entry.op->schema().arguments()[a].name() + " another", sample, tensors});
      calls.back().sample.arguments[a] = other;
    }
  }
  return calls;
}

// ---- a call and its transforms ----

struct Outcome {
  Tensors tensors;
  std::optional<std::string> error;
};

Outcome outcome_of(const std::function<Tensors()>& f) {
  try {
    return {f(), std::nullopt};
  } catch (const c10::Error& error) {
    return {{}, error.what_without_backtrace()};  // to name the functions of a backtrace takes long
  } catch (const std::exception& error) {
    return {{}, error.what()};
  }
}

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const Tensor& t : tensors) result.push_back(t.clone());
  return result;
}

class OperatorTest : public testing::Test {
 public:
  explicit OperatorTest(std::shared_ptr<const op_db::Entry> entry) : entry_(std::move(entry)) {}

  void TestBody() override {
    const char* asked = std::getenv("TOWER_WRONG_CALLS");
    int samples = asked ? std::atoi(asked) : 1;
    const auto dtype = entry_->real ? at::kDouble : at::kComplexDouble;
    for (const auto& text : entry_->sample_texts) {
      if (text[0] == '!' || samples == 0) continue;
      const auto sample = op_db::parse_sample(*entry_, text, dtype);
      if (sample.leaves.empty()) continue;
      --samples;
      Tensors tensors = op_db::make_leaves(*entry_, sample, dtype, 0);
      for (size_t i = 0; i < tensors.size(); ++i)
        tensors[i] = op_db::projected(sample.leaves[i].spec, tensors[i]).detach();
      for (const Call& call : wrong_calls(*entry_, sample, tensors)) check(call);
    }
  }

 private:
  void check(const Call& call) {
    if (failures_ >= 5) return;
    const auto f = [&](const Tensors& own) { return call(*entry_->op, own); };
    const Outcome plain = outcome_of([&] { return f(copies(call.tensors)); });
    std::vector<size_t> mappable;
    for (size_t i = 0; i < call.tensors.size(); ++i)
      if (!call.sample.leaves[i].spec.unmapped) mappable.push_back(i);
    if (!mappable.empty()) check_mapped(call, f, plain, mappable);
    for (const size_t alone : mappable)
      if (mappable.size() > 1) check_mapped(call, f, plain, {alone});
    if (plain.error) check_derivatives(call, f, *plain.error);
  }

  void check_mapped(const Call& call, const td::Function& f, const Outcome& plain, const std::vector<size_t>& mapped) {
    td::Dims dims(call.tensors.size());
    Tensors arguments = copies(call.tensors);
    std::string how = "vmap over";
    for (const size_t i : mapped) {
      dims[i] = 0;
      arguments[i] = at::stack({arguments[i], arguments[i]});
      how += " " + std::to_string(i);
    }
    const Outcome actual =
        outcome_of([&] { return td::vmap(f, dims, {0}, {.randomness = tower::Randomness::different})(arguments); });
    if (actual.error) return;
    if (plain.error) return fail(call, how + " gives a result; the plain call throws: " + *plain.error);
    if (entry_->unspecified || entry_->op->hasTag(at::Tag::nondeterministic_seeded)) return;
    Tensors second;
    for (const Tensor& t : actual.tensors) {
      if (t.dim() == 0 || t.size(0) != 2) return fail(call, how + ": a result has no dimension of the batch");
      second.push_back(t.select(0, 1));
    }
    const std::string difference = support::difference(
        second, plain.tensors,
        support::same_arithmetic(support::coarsest(call.tensors, support::coarsest(plain.tensors))));
    if (!difference.empty()) fail(call, how + ": " + difference);
  }

  void check_derivatives(const Call& call, const td::Function& f, const std::string& error) {
    Tensors primals, tangents;
    for (const Tensor& t : call.tensors) {
      if (!has_derivative(t)) continue;
      primals.push_back(t.clone());
      tangents.push_back(at::ones_like(t));
    }
    if (primals.empty()) return;
    const auto of_primals = [&](const Tensors& own) {
      Tensors all = copies(call.tensors);
      size_t next = 0;
      for (Tensor& t : all)
        if (has_derivative(t)) t = own[next++];
      return f(all);
    };
    if (!outcome_of([&] { return td::vjp(of_primals, primals).first; }).error)
      fail(call, "vjp gives a result; the plain call throws: " + error);
    if (!outcome_of([&] { return td::jvp(of_primals, primals, tangents).first; }).error)
      fail(call, "jvp gives a result; the plain call throws: " + error);
  }

  void fail(const Call& call, const std::string& message) {
    if (++failures_ > 5) return;
    ADD_FAILURE() << entry_->name << "(" << call.sample.text << "), " << call.what << "\n  "
                  << message.substr(0, message.find('\n'));
  }

  std::shared_ptr<const op_db::Entry> entry_;
  int failures_ = 0;
};

// Operators that are left out, and why.
const std::map<std::string, std::string>& left_out() {
  static const std::string dies = "LibTorch's own kernel reads past what it was given, and dies";
  static const std::map<std::string, std::string> reasons{
      {"ctc_loss.IntList", dies},  {"ctc_loss.Tensor", dies},
      {"embedding_bag", dies},     {"lstm.input", dies},
      {"native_batch_norm", dies}, {"segment_reduce", dies},
      {"lu_unpack", dies},         {"topk", "the first none of a tensor without dimensions is a number to LibTorch"},
  };
  return reasons;
}

bool is_internal(const std::string& name) {
  return name[0] == '_' || name.find("_backward") != std::string::npos || name.find("_jvp") != std::string::npos;
}

}  // namespace

void register_tests(const std::string& op_db_folder) {
  if (!support::device().is_cpu()) return;  // what a device's kernels look at is another matter
  std::map<std::string, int> seen;
  for (auto& entry : op_db::load(op_db_folder)) {
    if (is_internal(entry.name) || left_out().count(entry.name) || entry.has("no_samples")) continue;
    const int number = ++seen[entry.name];
    const std::string name = entry.name + (number == 1 ? "" : "#" + std::to_string(number));
    auto shared = std::make_shared<const op_db::Entry>(std::move(entry));
    testing::RegisterTest("wrong_calls", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [shared]() -> testing::Test* { return new OperatorTest(shared); });
  }
}

}  // namespace wrong_calls
