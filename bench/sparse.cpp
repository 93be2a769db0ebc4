// What derivatives of discretized equations cost: a pattern, a sparse Jacobian and Hessian, and an implicit function,
// each beside what it consists of or what a person writes in its place.
//
//   sparse [--only=PART OF A NAME]    of grid, energy, bundle, root, million
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/compile.h>
#include <tower/tower.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "material_newton/newton.h"
#include "sparse/groups.h"
#include "support/bundle_adjustment.h"
#include "support/medians.h"
#include "support/report.h"

namespace {

using at::Tensor;

void check(const Tensor& actual, const Tensor& expected) {
  if (!at::allclose(actual, expected, 1e-6, 1e-6 * expected.abs().max().item<double>()))
    throw std::runtime_error("the derivatives disagree");
}
std::string milliseconds(double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds); }

/// What the process has mapped, in MB, and its peak since it was last reset.
double memory(const char* what) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kilobytes = 0; word == what && status >> kilobytes) return kilobytes / 1024;
  return 0;
}
template <class F>
double peak_memory_of(F&& f) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const double before = memory("VmRSS:");
  f();
  return memory("VmHWM:") - before;
}

// −Δu + u³ cos of its right neighbour, on a square grid: five points, and not linear.
Tensor residual(const Tensor& u) {
  const int64_t n = u.size(0), m = u.size(1);
  const Tensor wide = at::constant_pad_nd(u, {1, 1, 1, 1});
  const auto shifted = [&](int64_t i, int64_t j) { return wide.narrow(0, i, n).narrow(1, j, m); };
  return 4 * u - shifted(0, 1) - shifted(2, 1) - shifted(1, 0) - shifted(1, 2) + u.pow(3) * shifted(1, 2).cos();
}

// The same matrix by a loop over the grid, derived and written by hand: indices are those of `like`.
Tensor by_hand(const Tensor& u, const Tensor& like) {
  const int64_t n = u.size(0), m = u.size(1);
  Tensor entries = at::empty_like(like.values());
  const auto* x = u.const_data_ptr<double>();
  auto* to = entries.mutable_data_ptr<double>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) {
      const int64_t k = i * m + j;
      const double right = j + 1 < m ? x[k + 1] : 0;
      if (i > 0) *to++ = -1;
      if (j > 0) *to++ = -1;
      *to++ = 4 + 3 * x[k] * x[k] * std::cos(right);
      if (j + 1 < m) *to++ = -1 - x[k] * x[k] * x[k] * std::sin(right);
      if (i + 1 < n) *to++ = -1;
    }
  return at::_sparse_csr_tensor_unsafe(like.crow_indices(), like.col_indices(), entries, like.sizes(), like.options());
}

// What the columns of each colour have in common.
Tensor directions_of(const tower::sparse::Colouring& colouring, const Tensor& u) {
  const Tensor colours = at::tensor(colouring.colours, at::kLong);
  return at::zeros({colouring.count, u.numel()}, u.options())
      .scatter_(0, colours.unsqueeze(0), 1)
      .view({colouring.count, u.size(0), u.size(1)});
}
Tensor along(const Tensor& directions, const Tensor& u) {
  const auto push = tower::linearize(residual, u).second;
  return tower::vmap(push)(directions);
}

// The matrix of these derivatives, by a loop over the grid that knows the five points.
Tensor assembled_by_hand(const Tensor& columns, const std::vector<int64_t>& colours, int64_t n, const Tensor& like) {
  Tensor entries = at::empty_like(like.values());
  const auto* from = columns.const_data_ptr<double>();
  auto* to = entries.mutable_data_ptr<double>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const int64_t k = i * n + j;
      const auto entry = [&](int64_t column) { *to++ = from[colours[static_cast<size_t>(column)] * n * n + k]; };
      if (i > 0) entry(k - n);
      if (j > 0) entry(k - 1);
      entry(k);
      if (j + 1 < n) entry(k + 1);
      if (i + 1 < n) entry(k + n);
    }
  return at::_sparse_csr_tensor_unsafe(like.crow_indices(), like.col_indices(), entries, like.sizes(), like.options());
}

Tensor some_field(int64_t n) { return at::rand({n, n}, at::kDouble); }

void grids(report::Table& table) {
  const Tensor u = some_field(320);
  std::optional<tower::Sparsity> pattern;
  double time = 0;
  const double memory =
      peak_memory_of([&] { time = thread_seconds([&] { pattern = tower::jacobian_sparsity(residual, u); }); });
  table.add({"pattern of five points, 102,400 unknowns", milliseconds(time), "", "1 s", report::verdict(time, 1)});
  table.add({"its memory", fmt::format("{:.0f} MB", memory), "", "200 MB", report::verdict(memory, 200)});
  std::optional<tower::SparseDerivative<Tensor (*)(const Tensor&), false>> jacobian;
  const double colouring = thread_seconds([&] { jacobian = tower::sparse_jacobian(&residual, *pattern); });
  const auto colours = static_cast<double>(jacobian->num_colours());
  table.add({"its colouring", milliseconds(colouring), "", "", ""});
  table.add({"colours", fmt::format("{:.0f}", colours), "", "6", report::verdict(colours, 6)});
  const auto groups = tower::sparse::jacobian_groups(*pattern);
  Tensor columns, values, matrix, expected;
  {
    const Tensor seeds = directions_of(groups.columns, u);
    const auto [mine, once] = seconds([&] { columns = along(seeds, u); }, [&] { matrix = residual(u); });
    table.add({"its derivatives along five directions, beside one residual", milliseconds(mine),
               fmt::format("{:.1f}", mine / once), "8", report::verdict(mine / once, 8)});
  }
  matrix = (*jacobian)(u);
  {
    const Tensor places = at::tensor(groups.places, at::kLong);
    const auto [mine, hand] =
        seconds([&] { matrix = jacobian->matrix(columns.flatten().index_select(0, places)); },
                [&] { expected = assembled_by_hand(columns, groups.columns.colours, u.size(0), matrix); });
    check(matrix.values(), expected.values());
    table.add({"the matrix of these, beside its assembly by hand", milliseconds(mine),
               fmt::format("{:.2f}", mine / hand), "3", report::verdict(mine / hand, 3)});
  }
  const auto compiled = tower::compile([&](const Tensor& at_u) { return jacobian->values(at_u); });
  const auto whole_compiled = [&](const Tensor& at_u) { return jacobian->matrix(compiled(at_u)); };
  for (const bool is_compiled : {false, true}) {
    const auto [whole, hand] = seconds([&] { matrix = is_compiled ? whole_compiled(u) : (*jacobian)(u); },
                                       [&] { expected = by_hand(u, matrix); });
    check(matrix.values(), expected.values());
    table.add({std::string("both") + (is_compiled ? ", compiled" : "") + ", beside a loop with the derivatives by hand",
               milliseconds(whole), fmt::format("{:.2f}", whole / hand), "", ""});
  }
}

void energies(report::Table& table) {
  const auto energy = [](const Tensor& u) {
    const auto differences = [](const Tensor& t, int64_t dim) { return t.slice(dim, 1) - t.slice(dim, 0, -1); };
    return (differences(u, 0).square() + 1).sqrt().sum() + (differences(u, 1).square() + 1).sqrt().sum() +
           u.pow(4).sum();
  };
  const Tensor u = some_field(100);
  const auto gradient = tower::grad(energy);
  const auto hessian = tower::sparse_hessian(energy, tower::hessian_sparsity(energy, u));
  Tensor matrix, once;
  const auto [mine, of_gradient] = seconds([&] { matrix = hessian(u); }, [&] { once = gradient(u); });
  const Tensor direction = some_field(100);
  check(at::mv(matrix, direction.flatten()), tower::hvp(energy, u, direction).second.flatten());
  table.add(
      {fmt::format("Hessian of an energy, 10,000 unknowns, {} colours, beside one gradient", hessian.num_colours()),
       milliseconds(mine), fmt::format("{:.1f}", mine / of_gradient), "25", report::verdict(mine / of_gradient, 25)});
}

// Observations each find their camera and point: by colours of the whole Jacobian, beside each observation's blocks.
void bundle(report::Table& table) {
  const auto made = bundle_adjustment::some_problem();
  const bundle_adjustment::Problem& problem = made.first;
  const bundle_adjustment::Unknowns& x = made.second;
  std::optional<tower::Sparsity> pattern;
  const double search = thread_seconds([&] { pattern = tower::jacobian_sparsity(problem, x); });
  table.add({"pattern of bundle adjustment, 31,843 observations", milliseconds(search), "", "0.3 s",
             report::verdict(search, 0.3)});
  std::optional<tower::SparseDerivative<bundle_adjustment::Problem, false>> jacobian;
  const double colouring = thread_seconds([&] { jacobian = tower::sparse_jacobian(problem, *pattern); });
  table.add({"its colouring", milliseconds(colouring), "", "", ""});
  const auto colours = static_cast<double>(jacobian->num_colours());
  table.add({"colours", fmt::format("{:.0f}", colours), "", "15", report::verdict(colours, 15)});
  const auto values = [&](const bundle_adjustment::Unknowns& at) { return jacobian->values(at); };
  const auto blocks = [&](const bundle_adjustment::Unknowns& at) { return problem.entries(at); };
  const auto fast = tower::compile(values);
  const auto fast_blocks = tower::compile(blocks);
  for (const bool is_compiled : {false, true}) {
    Tensor found, expected;
    const auto [mine, by_blocks] = seconds([&] { found = is_compiled ? fast(x) : values(x); },
                                           [&] { expected = is_compiled ? fast_blocks(x) : blocks(x); });
    check(found, problem.that_may_differ(expected));
    table.add(
        {std::string("its values") + (is_compiled ? ", compiled" : "") + ", beside vmap(jacrev) of an observation",
         milliseconds(mine), fmt::format("{:.2f}", mine / by_blocks), is_compiled ? "1.3" : "",
         is_compiled ? report::verdict(mine / by_blocks, 1.3) : ""});
  }
}

void a_million(report::Table& table) {
  const Tensor u = some_field(1000);
  Tensor matrix;
  double time = 0;
  const double memory = peak_memory_of([&] {
    time = thread_seconds([&] { matrix = tower::sparse_jacobian(residual, tower::jacobian_sparsity(residual, u))(u); });
  });
  const Tensor direction = some_field(1000);
  check(at::mv(matrix, direction.flatten()), tower::jvp(residual, u, direction).second.flatten());
  table.add({"1,000,000 unknowns: pattern, colouring and Jacobian", fmt::format("{:.1f} s", time),
             fmt::format("{:.2f} GB", memory / 1024), "6 GB", report::verdict(memory / 1024, 6)});
}

// Seven coupled equations in x with six parameters, of a point of the material that flows.
struct Points {
  material_newton::Material material{material_newton::Constants{}};
  material_newton::Step step;
  Tensor x;

  explicit Points(int64_t n) {
    const auto f64 = at::dtype(at::kDouble);
    at::manual_seed(1);
    step = {3e-3 * at::randn({n, 6}, f64), at::ones({n}, f64), at::zeros({n, 6}, f64), at::zeros({n}, f64)};
    x = material_newton::solve(material_newton::correct_with_tower(material),
                               material_newton::first_guess(material, step), step, 1e-8)
            .x;
  }

  auto residual_of(const material_newton::Step& one) const {
    return [this, one](const Tensor& at_x, const Tensor& strain) {
      return material.residual(at_x, {strain, one.duration, one.stress, one.plastic_strain});
    };
  }
  Tensor written_out() const {
    return tower::vmap([&](const Tensor& at_x, const material_newton::Step& one) {
      const auto [by_x, by_strain] = tower::jacfwd<0, 1>(residual_of(one))(at_x, one.strain_increment);
      return -at::linalg_solve(by_x, by_strain);
    })(x, step);
  }
  template <class Jacobian>
  Tensor implicit(Jacobian jacobian) const {
    return tower::vmap([&](const Tensor& at_x, const material_newton::Step& one) {
      const auto solve = tower::implicit_root(residual_of(one), [at_x](const Tensor&) { return at_x; });
      return jacobian(solve)(one.strain_increment);
    })(x, step);
  }
};

void implicit_root(report::Table& table) {
  const Points points(10'000);
  const auto forward = [](const auto& solve) { return tower::jacfwd(solve); };
  const auto reverse = [](const auto& solve) { return tower::jacrev(solve); };
  Tensor expected, found;
  const auto by_hand = [&] { expected = points.written_out(); };
  {
    const auto [time, written_out] = seconds([&] { found = points.implicit(forward); }, by_hand);
    check(found, expected);
    table.add({"Jacobian of an implicit root, 10,000 systems of 7, jacfwd", milliseconds(time),
               fmt::format("{:.2f}", time / written_out), "1.5", report::verdict(time / written_out, 1.5)});
  }
  {
    const auto [time, written_out] = seconds([&] { found = points.implicit(reverse); }, by_hand);
    check(found, expected);
    table.add({"the same, jacrev", milliseconds(time), fmt::format("{:.2f}", time / written_out), "", ""});
  }
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  report::Table table({"", "", "relative", "budget", ""});
  const std::pair<const char*, void (*)(report::Table&)> all[] = {
      {"grid", grids}, {"energy", energies}, {"bundle", bundle}, {"root", implicit_root}, {"million", a_million}};
  const std::string option = "--only=", given = argc > 1 ? argv[1] : option;
  if (given.rfind(option, 0) != 0) throw std::invalid_argument("sparse [--only=PART OF A NAME]");
  for (const auto& [name, run] : all) {
    if (std::string(name).find(given.substr(option.size())) == std::string::npos) continue;
    at::manual_seed(1);
    run(table);
  }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "sparse: {}\n", error.what());
  return EXIT_FAILURE;
}
