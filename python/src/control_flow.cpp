// Branches, loops and checkpoints over lists of tensors. Their functions take and return such lists; they are kept, and
// run again in the backward pass. The trees are the veneer's part (torch_tower/_control_flow.py).
#include <pybind11/stl.h>
#include <tower/checkpoint.h>
#include <tower/cond.h>
#include <tower/loops.h>

#include "kept_function.h"
#include "module.h"

namespace tower::python {
namespace {

dynamic::Predicate to_predicate(py::object function) {
  return [f = keep_function(std::move(function))](const Tensors& state) {
    py::gil_scoped_acquire gil;
    const py::object holds = call(f, to_list(state));
    return PyBool_Check(holds.ptr()) ? detail::as_predicate(holds.is(py::handle(Py_True))) : to_tensor(holds);
  };
}

// A step, which is made again without the examples that have ended where an operator refused their numbers.
dynamic::Function to_step(py::object function) {
  return [f = keep_function(std::move(function))](const Tensors& state) {
    py::gil_scoped_acquire gil;
    const detail::ForeignFrame frame;
    try {
      return to_tensors(call(f, to_list(state)));
    } catch (py::error_already_set& error) {
      if (frame.has_refusal() && error.matches(PyExc_Exception)) throw RefusedByOperator(error);
      throw;
    }
  };
}

detail::NameTensor to_name(py::object function) {
  return [f = keep(std::move(function))](size_t index) {
    py::gil_scoped_acquire gil;
    return f->get()(index).cast<std::string>();
  };
}

py::list cond(const at::Tensor& predicate, py::object true_branch, py::object false_branch, py::handle operands) {
  const Tensors given = to_tensors(operands);
  const dynamic::Function when_true = of_lists(std::move(true_branch)), when_false = of_lists(std::move(false_branch));
  return to_list(without_gil([&] { return dynamic::cond(predicate, when_true, when_false, given); }));
}

// With `report`, as try_while_loop: whether it ended and its steps come last.
py::list while_loop(py::object predicate, py::object body, py::handle start, std::optional<int64_t> max_steps,
                    py::handle checkpoints, double compact, bool report, py::object name) {
  const Tensors from = to_tensors(start);
  const WhileOptions options{max_steps, to_checkpoints(checkpoints), compact};
  const dynamic::Predicate holds = to_predicate(std::move(predicate));
  const dynamic::Function step = to_step(std::move(body));
  const detail::NameTensor name_of = to_name(std::move(name));
  return to_list(without_gil([&] { return detail::run_while(holds, step, from, options, report, name_of); }));
}

py::list fori_loop(int64_t lower, int64_t upper, py::object body, py::handle start, py::handle checkpoints,
                   py::object name) {
  const Tensors from = to_tensors(start);
  const ForiOptions options{to_checkpoints(checkpoints)};
  const dynamic::ForiStep step = [f = keep_function(std::move(body))](int64_t index, const Tensors& state) {
    py::gil_scoped_acquire gil;
    return to_tensors(call(f, index, to_list(state)));
  };
  const detail::NameTensor name_of = to_name(std::move(name));
  return to_list(without_gil([&] { return detail::run_fori(lower, upper, step, from, options, name_of); }));
}

// The step takes the carry and an element of the inputs, and returns a pair.
py::tuple scan(py::object step, py::handle start, py::handle inputs, std::optional<int64_t> length, bool reverse,
               py::handle checkpoints, py::object name) {
  const Tensors from = to_tensors(start), elements = to_tensors(inputs);
  const ScanOptions options{length, reverse, to_checkpoints(checkpoints)};
  const dynamic::ScanStep run = [f = keep_function(std::move(step))](const Tensors& carry, const Tensors& element) {
    py::gil_scoped_acquire gil;
    const auto both = py::cast<py::tuple>(call(f, to_list(carry), to_list(element)));
    return std::pair(to_tensors(both[0]), to_tensors(both[1]));
  };
  const detail::NameTensor name_of = to_name(std::move(name));
  const auto [last, stacked] = without_gil([&] { return detail::run_scan(run, from, elements, options, name_of); });
  return py::make_tuple(to_list(last), to_list(stacked));
}

py::list associative_scan(py::object combine, py::handle elements, int64_t dim, bool reverse) {
  const Tensors given = to_tensors(elements);
  const dynamic::Combine both = [f = keep_function(std::move(combine))](const Tensors& a, const Tensors& b) {
    py::gil_scoped_acquire gil;
    return to_tensors(call(f, to_list(a), to_list(b)));
  };
  return to_list(without_gil([&] { return dynamic::associative_scan(both, given, {dim, reverse}); }));
}

py::list checkpoint(py::object function, py::handle operands, std::vector<std::string> keep,
                    std::vector<std::string> keep_names, py::object policy) {
  const Tensors given = to_tensors(operands);
  const dynamic::Function f = of_lists(std::move(function));
  CheckpointOptions options{std::move(keep), std::move(keep_names)};
  if (!policy.is_none())
    options.policy = [chooses = keep_function(std::move(policy))](const std::string& op, const Tensors& results) {
      py::gil_scoped_acquire gil;
      return py::cast<bool>(py::bool_(call(chooses, op, to_list(results))));
    };
  return to_list(without_gil([&] { return dynamic::checkpoint(f, given, options); }));
}

}  // namespace

void define_control_flow(py::module_& module) {
  module.def("cond", &cond);
  module.def("while_loop", &while_loop);
  module.def("fori_loop", &fori_loop);
  module.def("scan", &scan);
  module.def("associative_scan", &associative_scan);
  module.def("checkpoint", &checkpoint);
  module.def("checkpoint_name", &checkpoint_name);
}

}  // namespace tower::python
