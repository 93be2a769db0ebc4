#include "programs/program.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/device.h"

namespace programs {

// ---- running -------------------------------------------------------------------------------------------------------

Tensors Program::operator()(const Tensors& arguments) const {
  Tensors registers = arguments;
  for (const Step& step : steps) {
    const Action& action = *step.action;
    const Tensor result = action.run(Call{registers, step});
    if (action.kind != Kind::writes) registers.push_back(result);
  }
  Tensors seen(registers.begin(), registers.begin() + static_cast<std::ptrdiff_t>(inputs.size()));
  const size_t newest = std::min<size_t>(registers.size() - inputs.size(), 3);
  for (size_t k = registers.size() - newest; k < registers.size(); ++k) seen.push_back(registers[k]);
  // What a caller computes from it; the inputs as they are in the end.
  for (Tensor& t : seen) t = t * 1;
  return seen;
}

// ---- printing ------------------------------------------------------------------------------------------------------

std::string Program::text() const {
  std::string text;
  for (size_t k = 0; k < inputs.size(); ++k) {
    text += "r" + std::to_string(k) + " = input of {";
    for (size_t d = 0; d < inputs[k].size(); ++d) text += (d ? ", " : "") + std::to_string(inputs[k][d]);
    text += "}\n";
  }
  size_t next = inputs.size();
  for (const Step& step : steps) {
    const Action& action = *step.action;
    if (action.kind != Kind::writes) text += "r" + std::to_string(next++) + " = ";
    for (const char* c = action.text.c_str(); *c; ++c) {
      if (*c == '$') text += "r" + std::to_string(step.operands[static_cast<size_t>(*++c - '0')]);
      else if (*c == '#') text += std::to_string(step.numbers[static_cast<size_t>(*++c - '0')]);
      else text += *c;
    }
    text += "\n";
  }
  return text;
}

// ---- making it smaller ---------------------------------------------------------------------------------------------

Program Program::without(size_t k) const {
  Program result{inputs, {}};
  std::vector<size_t> renamed;  // old register -> new one
  constexpr size_t gone = SIZE_MAX;
  for (size_t r = 0; r < inputs.size(); ++r) renamed.push_back(r);
  size_t next = inputs.size();
  for (size_t i = 0; i < steps.size(); ++i) {
    Step step = steps[i];
    bool stays = i != k;
    for (size_t& operand : step.operands) {
      stays = stays && renamed[operand] != gone;
      operand = renamed[operand];
    }
    if (step.action->kind != Kind::writes) renamed.push_back(stays ? next++ : gone);
    if (stays) result.steps.push_back(std::move(step));
  }
  return result;
}

Program shrunk(Program program, const std::function<bool(const Program&)>& fails) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t k = program.steps.size(); k-- > 0;) {
      Program candidate = program.without(k);
      if (candidate.steps.empty() || !fails(candidate)) continue;
      program = std::move(candidate);
      smaller = true;
      break;
    }
  }
  return program;
}

// ---- drawing -------------------------------------------------------------------------------------------------------

const Tensor& Draw::choose(const std::function<bool(size_t)>& fits) {
  std::vector<size_t> candidates;
  for (size_t r = 0; r < registers_.size(); ++r)
    if (fits(r)) candidates.push_back(r);
  if (candidates.empty()) throw NoSuchOperands();
  const size_t chosen = candidates[random_() % candidates.size()];
  step_.operands.push_back(chosen);
  return registers_[chosen];
}

const Tensor& Draw::any(const Predicate& fits) {
  return choose([&](size_t r) { return fits(registers_[r]); });
}

const Tensor& Draw::target(const Predicate& fits) {
  return choose([&](size_t r) { return writable_[r] && fits(registers_[r]); });
}

const Tensor& Draw::apart(const Predicate& fits) {
  const Tensor& first = registers_[step_.operands[0]];
  return choose([&](size_t r) { return !registers_[r].is_alias_of(first) && fits(registers_[r]); });
}

int64_t Draw::number(int64_t low, int64_t high) {
  step_.numbers.push_back(low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1)));
  return step_.numbers.back();
}

int64_t Draw::dim_of(const Tensor& t) { return number(0, t.dim() - 1); }

// ---- generating ----------------------------------------------------------------------------------------------------

namespace {

bool is_small(const Tensor& t) {
  return t.numel() > 0 && t.numel() <= 24 && t.dim() <= 3 && t.abs().max().item<double>() < 4;
}

// An input cannot change its shape in place: the caller's tensor could not follow.
bool changes_shape(const Action& action) {
  const std::string& text = action.text;
  return text == "$0.t_()" || text == "$0.unsqueeze_(0)" || text == "$0.squeeze_()";
}

Tensors values_for(const std::vector<std::vector<int64_t>>& shapes, double phase) {
  Tensors values;
  for (size_t k = 0; k < shapes.size(); ++k) {
    const int64_t n = c10::multiply_integers(shapes[k]);
    const Tensor x = at::arange(1, n + 1, at::dtype(at::kDouble).device(support::device())) * 1.7;
    values.push_back(at::sin(x + static_cast<double>(k) + phase).view(shapes[k]));
  }
  return values;
}

}  // namespace

Program generate(uint64_t seed, const std::vector<Action>& from, size_t inputs) {
  std::mt19937_64 random(seed);
  Program program;
  for (size_t k = 0; k < inputs; ++k) {
    std::vector<int64_t> shape(random() % 3);
    for (int64_t& s : shape) s = static_cast<int64_t>(1 + random() % 3);
    program.inputs.push_back(shape);
  }
  Tensors registers = values_for(program.inputs, 0);
  std::vector<bool> writable(registers.size(), true);
  const size_t length = 4 + random() % 10;
  for (int attempts = 0; program.steps.size() < length && attempts < 400; ++attempts) {
    Draw draw(random, registers, writable);
    Step step;
    const Action& action = from[random() % from.size()];
    Tensor result;
    try {
      action.draw(draw);
      step = draw.step();
      step.action = &action;
      if (changes_shape(action) && step.operands[0] < program.inputs.size()) continue;
      result = (action.alone ? action.alone : action.run)(Call{registers, step});
    } catch (const NoSuchOperands&) {
      continue;
    }
    if (action.kind != Kind::writes) {
      if (!is_small(result)) continue;
      registers.push_back(result);
      writable.push_back(action.kind == Kind::makes || (action.kind == Kind::views && writable[step.operands[0]]));
    }
    program.steps.push_back(std::move(step));
    // Written values may have grown out of bounds: the program ends before that.
    if (!std::all_of(registers.begin(), registers.end(), is_small)) {
      program.steps.pop_back();
      break;
    }
  }
  return program;
}

bool has_its_views(const Program& program) {
  return program.text().find(".unfold(") == std::string::npos || support::runs_on_device("unfold", [] {
           const Tensor x = at::zeros({3}, at::device(support::device()));
           TORCH_CHECK(x.unfold(0, 2, 1).is_alias_of(x), "it is a copy there");
         });
}

Tensors examples_for(const Program& program, double phase, bool in_columns) {
  std::vector<std::vector<int64_t>> shapes = program.inputs;
  for (std::vector<int64_t>& shape : shapes) shape.insert(shape.begin(), 2);
  Tensors batch = values_for(shapes, phase);
  for (size_t k = 1; in_columns && k < batch.size(); ++k)
    if (batch[k].dim() > 2) batch[k] = batch[k].transpose(-1, -2).contiguous().transpose(-1, -2);
  return batch;
}

void expect_none(const support::Seeds& seeds, const std::function<std::string(const Program&)>& disagreement,
                 const std::vector<Action>& from) {
  for (const uint64_t seed : seeds) {
    const Program program = generate(seed, from);
    if (!has_its_views(program) || disagreement(program).empty()) continue;
    const Program small = shrunk(program, [&](const Program& p) { return !disagreement(p).empty(); });
    ADD_FAILURE() << "program " << seed << ":\n" << small.text() << disagreement(small);
  }
}

}  // namespace programs
