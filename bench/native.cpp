// Compiled functions as C libraries and by pointers, beside CasADi's generated C (-O3 -march=native), C++ by hand and
// jax.jit, one thread. All but the last, which Python calls, are called from C++ with memory that is there:
//
//   Newton      ten corrections of examples/material_newton, a call each, at one point, and at 10,000
//   perceptron  3-64-64-64-3 with tanh, its Jacobian and Hessian, at one point
//   arm         gradient and Hessian, by angles and speeds, of half the squared torques of seven joints, at one state
//   system      of 100 and of 300 equations; compiled, LibTorch solves it; CasADi has a QR factorization in C, and by
//               hand are the plain loops of an LU factorization
//
//   script/bench native [--only=Newton]
//
// It fails where results differ. The second table is what it takes until a function can be called: for Tower, all of
// it, tracing, deriving, what LLVM and the C compiler take, and of that export_c and the C compiler; for CasADi, gcc
// alone, without the expression in Python. And how large the shared libraries are.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "compile/newton_by_hand.h"
#include "material_newton/histories.h"
#include "native/arm.h"
#include "support/race.h"
#include "support/report.h"

namespace {

namespace fs = std::filesystem;
using at::Tensor;
using Doubles = std::vector<double>;

constexpr int kCorrections = 10;

fs::path folder() {
  static const fs::path path = [] {
    fs::path made = fs::temp_directory_path() / "tower_bench_native";
    fs::remove_all(made);
    fs::create_directories(made);
    return made;
  }();
  return path;
}

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

void* loaded(const std::string& name) {
  void* library = dlopen((folder() / (name + ".so")).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  return library;
}

template <class F>
F* symbol(void* library, const std::string& name) {
  void* found = dlsym(library, name.c_str());
  if (!found) throw std::runtime_error(dlerror());
  return reinterpret_cast<F*>(found);
}

using Inputs = std::vector<const double*>;
using Outputs = std::vector<double*>;
/// A function of `n` examples in memory.
using Pointers = std::function<void(int64_t n, const Inputs&, const Outputs&)>;

// How long it took until a function could be called, in seconds, and the size of its shared library.
struct Made {
  double all = 0, exported = 0, compiler = 0;
  double kilobytes = 0;
};

double kilobytes_of(const std::string& library) {
  return static_cast<double>(fs::file_size(folder() / (library + ".so"))) / 1024;
}

/// The C library of a compiled function.
template <class Compiled>
Pointers exported(const Compiled& compiled, const std::string& name, int64_t most, Made& made) {
  made.exported = seconds_of([&] { tower::export_c(compiled, name, {.folder = folder().string()}); });
  made.compiler = seconds_of([&] {
    shell(fmt::format("cd '{0}' && cc -std=c99 -O2 -shared -fPIC {1}.c {1}_kernels.o -o {1}.so -lm", folder().string(),
                      name));
  });
  made.kilobytes = kilobytes_of(name);
  void* library = loaded(name);
  auto* const f = symbol<int(int64_t, const double* const*, double* const*, void*)>(library, name);
  const auto bytes = static_cast<size_t>(symbol<int64_t(int64_t)>(library, name + "_work_bytes")(most));
  return [f, work = std::make_shared<std::vector<char>>(bytes)](int64_t n, const Inputs& x, const Outputs& y) {
    if (f(n, x.data(), y.data(), work->data()) != 0) throw std::runtime_error("an exported function failed");
  };
}

/// CasADi's, which is of one example.
Pointers casadis(const std::string& name, Made& made) {
  made.compiler = seconds_of([&] {
    shell(fmt::format("cd '{0}' && gcc -O3 -march=native -shared -fPIC {1}.c -o casadi_{1}.so -lm", folder().string(),
                      name));
  });
  made.kilobytes = kilobytes_of("casadi_" + name);
  void* library = loaded("casadi_" + name);
  long long sizes[4] = {};
  symbol<int(long long*, long long*, long long*, long long*)>(library, name + "_work")(sizes, sizes + 1, sizes + 2,
                                                                                       sizes + 3);
  auto* const f = symbol<int(const double**, double**, long long*, double*, int)>(library, name);
  struct Room {
    std::vector<const double*> arguments;
    std::vector<double*> results;
    std::vector<long long> integers;
    Doubles work;
  };
  const auto room = std::make_shared<Room>();
  room->arguments.resize(static_cast<size_t>(sizes[0]));
  room->results.resize(static_cast<size_t>(sizes[1]));
  room->integers.resize(static_cast<size_t>(sizes[2]) + 1);
  room->work.resize(static_cast<size_t>(sizes[3]) + 1);
  return [f, room](int64_t, const Inputs& x, const Outputs& y) {
    std::copy(x.begin(), x.end(), room->arguments.begin());
    std::copy(y.begin(), y.end(), room->results.begin());
    if (f(room->arguments.data(), room->results.data(), room->integers.data(), room->work.data(), 0) != 0)
      throw std::runtime_error("CasADi's function failed");
  };
}

struct Contender {
  std::string name;
  std::function<void()> call;
  std::function<Doubles()> result;
};
struct Row {
  std::string name;
  std::vector<Contender> contenders;  // Tower's exported function first
  Made made = {}, of_casadi = {};
  std::optional<double> jax = std::nullopt;  // nanoseconds
};

Doubles numbers(const Tensor& t) {
  const Tensor c = t.contiguous();
  return {c.const_data_ptr<double>(), c.const_data_ptr<double>() + c.numel()};
}

void write_numbers(const std::string& name, const std::vector<Doubles>& parts) {
  std::ofstream file(folder() / name, std::ios::binary);
  for (const Doubles& d : parts)
    file.write(reinterpret_cast<const char*>(d.data()), static_cast<std::streamsize>(d.size() * sizeof(double)));
}

// ---- Newton ----

using material_newton::Material;
using material_newton::Step;

struct Points {
  Doubles start, strain, duration, stress, plastic;  // seven, six, one, six and one for each
  int64_t count;
};
// Of more points than are wanted: the first is at rest.
Points points(const Material& material, int64_t count) {
  const auto cycles = material_newton::Cycles::random(count + 1, 1);
  const at::TensorOptions f64 = at::kDouble;
  const auto wanted = [](const Tensor& t) { return numbers(t.narrow(0, 1, t.size(0) - 1)); };
  const Tensor strain = cycles.strain(0.1);
  return {wanted(at::constant_pad_nd(strain.mm(material.elasticity), {0, 1})),
          wanted(strain),
          wanted(cycles.period / 10),
          wanted(at::zeros({count + 1, 6}, f64)),
          wanted(at::zeros({count + 1}, f64)),
          count};
}

/// Corrections of all points, `at_once` of them a call: x, and a norm for each.
Contender corrections(const std::string& name, const Points& p, const Pointers& correct, int64_t at_once) {
  struct State {
    Doubles x, next, norm;
  };
  const auto state =
      std::make_shared<State>(State{p.start, Doubles(p.start.size()), Doubles(static_cast<size_t>(p.count))});
  return {name,
          [=, &p] {
            for (int64_t first = 0; first < p.count; first += at_once) {
              double* from = state->x.data() + 7 * first;
              double* to = state->next.data() + 7 * first;
              std::copy_n(p.start.data() + 7 * first, 7 * at_once, from);
              const Outputs norm{nullptr, state->norm.data() + first};
              for (int i = 0; i < kCorrections; ++i) {
                correct(at_once,
                        {from, p.strain.data() + 6 * first, p.duration.data() + first, p.stress.data() + 6 * first,
                         p.plastic.data() + first},
                        {to, norm[1]});
                std::swap(from, to);
              }
              if (from != state->x.data() + 7 * first) std::copy_n(from, 7 * at_once, to);
            }
          },
          [state] { return state->x; }};
}

Contender by_hand(const Points& p, const Material& material) {
  struct State {
    std::vector<scalar::Point> given;
    Doubles x, norm;
  };
  const auto state = std::make_shared<State>();
  state->x = p.start;
  state->norm.resize(static_cast<size_t>(p.count));
  for (int64_t n = 0; n < p.count; ++n) {
    scalar::Point& point = state->given.emplace_back();
    std::copy_n(p.strain.data() + 6 * n, 6, point.strain_increment);
    std::copy_n(p.stress.data() + 6 * n, 6, point.stress);
    point.duration = p.duration[static_cast<size_t>(n)];
    point.plastic_strain = p.plastic[static_cast<size_t>(n)];
  }
  return {"by hand",
          [state, &p, newton = scalar::Newton(material)] {
            state->x = p.start;
            for (size_t n = 0; n < state->given.size(); ++n)
              for (int i = 0; i < kCorrections; ++i)
                state->norm[n] = newton.correct(state->given[n], state->x.data() + 7 * n);
          },
          [state] { return state->x; }};
}

Row newton(int64_t count, bool forward, const Pointers& of_casadi, const Made& made_by_gcc) {
  static const Material material{material_newton::Constants{}};
  static std::map<int64_t, Points> all;
  const auto [found, is_new] = all.try_emplace(count);
  Points& p = found->second;
  if (is_new) {
    p = points(material, count);
    write_numbers(fmt::format("points_{}", count), {p.start, p.strain, p.duration, p.stress, p.plastic});
  }
  const auto correct = [forward](const Tensor& x, const Tensor& strain, const Tensor& duration, const Tensor& stress,
                                 const Tensor& plastic) {
    const auto residual = [&](const Tensor& at) {
      return material.residual(at, Step{strain, duration, stress, plastic});
    };
    const Tensor r = residual(x), jacobian = forward ? tower::jacfwd(residual)(x) : tower::jacrev(residual)(x);
    return std::pair(x - at::linalg_solve(jacobian, r), r.norm());
  };
  const auto tensors = [&](int64_t n) {
    const auto some = [&](const Doubles& d, int64_t width) {
      Tensor t = at::tensor(at::ArrayRef<double>(d).slice(0, static_cast<size_t>(n * width)), at::kDouble);
      return width == 1 ? t : t.view({n, width});
    };
    return std::tuple(some(p.start, 7), some(p.strain, 6), some(p.duration, 1), some(p.stress, 6), some(p.plastic, 1));
  };
  Row row{fmt::format("Newton, {} point{}, {}", count, count == 1 ? "" : "s", forward ? "jacfwd" : "jacrev"), {}};
  const std::string name = fmt::format("newton_{}_{}", count, forward ? "forward" : "reverse");
  // `calls`: what has the function traced.
  const auto add = [&](const auto& compiled, const std::function<void()>& calls) {
    row.made.all = seconds_of([&] {
      calls();
      row.contenders.push_back(corrections("exported", p, exported(compiled, name, count, row.made), count));
    });
    const auto raw = compiled.template native<double, 5>();
    const Pointers native = [raw](int64_t n, const Inputs& x, const Outputs& y) {
      raw(n, {x[0], x[1], x[2], x[3], x[4]}, {y[0], y[1]});
    };
    row.contenders.push_back(corrections("native", p, native, count));
  };
  if (count == 1) {
    const auto compiled = tower::compile(correct);
    add(compiled, [&] {
      const auto [x, strain, duration, stress, plastic] = tensors(1);
      for (int i = 0; i < 2; ++i) compiled(x[0], strain[0], duration[0], stress[0], plastic[0]);
    });
  } else {
    const auto compiled = tower::compile(tower::vmap(correct));
    add(compiled, [&] {
      for (const int64_t n : {10, 20}) std::apply(compiled, tensors(n));
    });
    const auto x = std::make_shared<Tensor>();
    row.contenders.push_back({"compiled",
                              [=, given = tensors(count)] {
                                const auto& [start, strain, duration, stress, plastic] = given;
                                *x = start;
                                for (int i = 0; i < kCorrections; ++i)
                                  *x = compiled(*x, strain, duration, stress, plastic).first;
                              },
                              [x] { return numbers(*x); }});
  }
  row.contenders.push_back(corrections("CasADi", p, of_casadi, 1));
  row.of_casadi = made_by_gcc;
  row.contenders.push_back(by_hand(p, material));
  return row;
}

// ---- a function at one point ----

Contender one_call(const std::string& name, const std::vector<Doubles>& inputs, const std::vector<size_t>& sizes,
                   const Pointers& f) {
  const auto given = std::make_shared<std::vector<Doubles>>(inputs);
  const auto results = std::make_shared<std::vector<Doubles>>();
  Inputs x;
  Outputs y;
  for (const Doubles& d : *given) x.push_back(d.data());
  for (const size_t size : sizes) results->emplace_back(size);
  for (Doubles& d : *results) y.push_back(d.data());
  return {name, [f, x, y, given] { f(1, x, y); },
          [=] {
            Doubles all;
            for (const Doubles& d : *results) all.insert(all.end(), d.begin(), d.end());
            return all;
          }};
}

std::vector<Tensor> layers() {
  at::Generator generator = at::detail::createCPUGenerator(3);
  std::vector<Tensor> all;
  for (const auto [rows, columns] : {std::pair{64, 3}, {64, 64}, {64, 64}, {3, 64}}) {
    all.push_back(at::randn({rows, columns}, generator, at::dtype(at::kDouble)) / std::sqrt(columns));
    all.push_back(at::randn({rows}, generator, at::dtype(at::kDouble)) / 2);
  }
  return all;
}

Tensor perceptron(const std::vector<Tensor>& weights, Tensor x) {
  for (size_t k = 0; k < weights.size(); k += 2) {
    x = at::mv(weights[k], x) + weights[k + 1];
    if (k + 2 < weights.size()) x = x.tanh();
  }
  return x;
}

Row perceptron_row(const Pointers& of_casadi, const Made& made_by_gcc) {
  const std::vector<Tensor> weights = layers();
  const Tensor x = at::tensor({0.3, -0.7, 0.5}, at::kDouble);
  const std::vector<size_t> sizes{3, 9, 27};
  Row row{"perceptron, Jacobian, Hessian", {}};
  std::optional<Contender> by_pointers;
  row.made.all = seconds_of([&] {
    const auto f = [weights](const Tensor& at) { return perceptron(weights, at); };
    const auto all = tower::compile(
        [f](const Tensor& at) { return std::tuple(f(at), tower::jacfwd(f)(at), tower::jacfwd(tower::jacfwd(f))(at)); });
    for (int i = 0; i < 2; ++i) all(x);
    row.contenders.push_back(one_call("exported", {numbers(x)}, sizes, exported(all, "mlp", 1, row.made)));
    const auto raw = all.native<double, 1>();
    by_pointers = one_call("native", {numbers(x)}, sizes, [raw](int64_t n, const Inputs& in, const Outputs& out) {
      raw(n, {in[0]}, {out[0], out[1], out[2]});
    });
  });
  row.contenders.push_back(*by_pointers);
  // Derivatives lie by columns, as forward mode makes them, and as CasADi has matrices.
  row.contenders.push_back(one_call("CasADi", {numbers(x)}, sizes, of_casadi));
  row.of_casadi = made_by_gcc;
  return row;
}

Row arm_row(const Pointers& of_casadi, const Made& made_by_gcc) {
  const Tensor state = at::arange(1, 15, at::kDouble).mul(1.3).sin(),
               accelerations = at::arange(1, 8, at::kDouble).cos();
  const std::vector<size_t> sizes{14, 196};
  const std::vector<Doubles> inputs{numbers(state), numbers(accelerations)};
  Row row{"arm, gradient and Hessian", {}};
  std::optional<Contender> by_pointers;
  row.made.all = seconds_of([&] {
    const auto all = tower::compile([](const Tensor& z, const Tensor& a) {
      const auto effort = [&](const Tensor& at) {
        return arm::torques(at.narrow(0, 0, 7), at.narrow(0, 7, 7), a).square().sum() / 2;
      };
      return std::pair(tower::grad(effort)(z), tower::hessian(effort)(z));
    });
    for (int i = 0; i < 2; ++i) all(state, accelerations);
    row.contenders.push_back(one_call("exported", inputs, sizes, exported(all, "seven_joints", 1, row.made)));
    const auto raw = all.native<double, 2>();
    by_pointers = one_call("native", inputs, sizes, [raw](int64_t n, const Inputs& in, const Outputs& out) {
      raw(n, {in[0], in[1]}, {out[0], out[1]});
    });
  });
  row.contenders.push_back(*by_pointers);
  row.contenders.push_back(one_call("CasADi", inputs, sizes, of_casadi));
  row.of_casadi = made_by_gcc;
  return row;
}

// ---- systems of equations ----

/// A x = b by elimination with exchanges of rows; A is row by row, and used up as b is, which becomes x.
void solve_by_hand(int64_t n, double* a, double* b) {
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i)
      if (std::abs(a[i * n + k]) > std::abs(a[pivot * n + k])) pivot = i;
    std::swap_ranges(a + k * n, a + (k + 1) * n, a + pivot * n);
    std::swap(b[k], b[pivot]);
    for (int64_t i = k + 1; i < n; ++i) {
      const double factor = a[i * n + k] / a[k * n + k];
      for (int64_t j = k + 1; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
      b[i] -= factor * b[k];
    }
  }
  for (int64_t i = n; i-- > 0;) {
    for (int64_t j = i + 1; j < n; ++j) b[i] -= a[i * n + j] * b[j];
    b[i] /= a[i * n + i];
  }
}

Row system_row(int64_t n, const Pointers& of_casadi, const Made& made_by_gcc) {
  const Tensor matrix = at::arange(n * n, at::kDouble).square().mul(0.7).sin().view({n, n}),
               sides = at::arange(n, at::kDouble).cos();
  const std::vector<Doubles> inputs{numbers(matrix), numbers(sides)};
  const std::vector<size_t> sizes{static_cast<size_t>(n)};
  Row row{fmt::format("system of {} equations", n), {}};
  const auto solve = tower::compile([](const Tensor& a, const Tensor& b) { return at::linalg_solve(a, b); });
  std::optional<Contender> by_pointers;
  row.made.all = seconds_of([&] {
    for (int i = 0; i < 2; ++i) solve(matrix, sides);
    row.contenders.push_back(
        one_call("exported", inputs, sizes, exported(solve, "tower_" + std::to_string(n), 1, row.made)));
    const auto raw = solve.native<double, 2>();
    by_pointers = one_call("native", inputs, sizes, [raw](int64_t k, const Inputs& in, const Outputs& out) {
      raw(k, {in[0], in[1]}, {out[0]});
    });
  });
  row.contenders.push_back(*by_pointers);
  const auto solution = std::make_shared<Tensor>();
  row.contenders.push_back(
      {"compiled", [=] { *solution = solve(matrix, sides); }, [solution] { return numbers(*solution); }});
  row.contenders.push_back(one_call("CasADi", {numbers(matrix.t()), numbers(sides)}, sizes, of_casadi));
  const auto used_up = std::make_shared<Doubles>();
  row.contenders.push_back(
      one_call("by hand", inputs, sizes, [n, used_up](int64_t, const Inputs& in, const Outputs& out) {
        used_up->assign(in[0], in[0] + n * n);
        std::copy_n(in[1], n, out[0]);
        solve_by_hand(n, used_up->data(), out[0]);
      }));
  row.of_casadi = made_by_gcc;
  return row;
}

// ---- the table ----

double apart(const Doubles& a, const Doubles& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += a[i] * a[i];
  }
  return a.size() == b.size() ? std::sqrt(difference / norm) : 1;
}

// A program of Python's that reads or writes files in the folder.
void run_python(const char* program, const std::string& arguments) {
  const std::string python = TOWER_BENCH_PYTHON;
  if (python.empty()) throw std::runtime_error("LibTorch is that of no Python, which CasADi and JAX could be in");
  shell(fmt::format("'{}' '{}/native/{}' '{}' {}", python, TOWER_BENCH_DIR, program, folder().string(), arguments));
}

void write_casadis_functions() {
  std::vector<Doubles> weights;
  for (const Tensor& t : layers()) weights.push_back(numbers(t));
  write_numbers("weights", weights);
  run_python("casadi_functions.py", "");
}

Doubles numbers_in(const std::string& name) {
  std::ifstream file(folder() / name, std::ios::binary | std::ios::ate);
  Doubles d(static_cast<size_t>(file.tellg()) / sizeof(double));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(d.data()), static_cast<std::streamsize>(d.size() * sizeof(double)));
  return d;
}

// How long each row takes there; how many of them differ.
int race_jax(std::vector<Row>& rows, const std::string& wanted) {
  run_python("jax_functions.py", "'" + wanted + "'");
  std::ifstream times(folder() / "jax_times");
  double microseconds = 0;
  int differ = 0, number = 0;
  for (std::string name; times >> microseconds && std::getline(times >> std::ws, name); ++number)
    for (Row& row : rows) {
      if (row.name != name) continue;
      row.jax = microseconds * 1e3;
      const double difference = apart(row.contenders[0].result(), numbers_in(fmt::format("jax_{}", number)));
      if (difference < 1e-9) continue;
      fmt::print("{}: jax.jit DIFFERS by {:.1e}\n", row.name, difference);
      ++differ;
    }
  return differ;
}

std::string in_microseconds(double ns) { return fmt::format("{:.{}f}", ns * 1e-3, ns < 1e5 ? 2 : 0); }

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = only(argc, argv);
  at::set_num_threads(1);
  write_casadis_functions();
  Made gcc[5];
  const auto is_wanted = [&](const char* name) {
    return wanted.empty() || std::string(name).find(wanted) != std::string::npos;
  };
  std::vector<Row> rows;
  if (is_wanted("Newton")) {
    const Pointers point = casadis("newton", gcc[0]);
    for (const int64_t count : {1, 10'000})
      for (const bool forward : {true, false}) rows.push_back(newton(count, forward, point, gcc[0]));
  }
  if (is_wanted("perceptron")) rows.push_back(perceptron_row(casadis("perceptron", gcc[1]), gcc[1]));
  if (is_wanted("arm")) rows.push_back(arm_row(casadis("arm", gcc[2]), gcc[2]));
  if (is_wanted("system")) {
    rows.push_back(system_row(100, casadis("system_100", gcc[3]), gcc[3]));
    rows.push_back(system_row(300, casadis("system_300", gcc[4]), gcc[4]));
  }
  Race race(argc, argv);
  int differ = 0;
  for (const Row& row : rows)
    for (const Contender& c : row.contenders) {
      c.call();
      const double difference = apart(row.contenders[0].result(), c.result());
      if (!(difference < 1e-9)) {
        fmt::print("{}: {} DIFFERS by {:.1e}\n", row.name, c.name, difference);
        ++differ;
      }
      race.add(row.name + "/" + c.name, c.call);
    }
  std::map<std::string, double> ns = race.run();
  differ += race_jax(rows, wanted);
  for (const Row& row : rows)
    if (row.jax) ns[row.name + "/jax.jit"] = *row.jax;
  const std::vector<std::string> columns{"exported", "native", "compiled", "CasADi", "by hand", "jax.jit"};
  std::vector<std::string> header{"µs"};
  header.insert(header.end(), columns.begin(), columns.end());
  header.emplace_back("exported : CasADi");
  report::Table times(header), made({"until it can be called", "seconds", "of these export_c", "C compiler", "KB",
                                     "gcc of CasADi's C", "KB of CasADi's"});
  for (const Row& row : rows) {
    std::vector<std::string> cells{row.name};
    for (const std::string& column : columns) {
      const auto found = ns.find(row.name + "/" + column);
      cells.push_back(found == ns.end() ? "" : in_microseconds(found->second));
    }
    if (ns.count(row.name + "/exported"))
      cells.push_back(fmt::format("{:.2f}", ns.at(row.name + "/exported") / ns.at(row.name + "/CasADi")));
    times.add(cells);
    std::vector<std::string> of_making{row.name};
    for (const double seconds : {row.made.all, row.made.exported, row.made.compiler})
      of_making.push_back(fmt::format("{:.2f}", seconds));
    of_making.push_back(fmt::format("{:.0f}", row.made.kilobytes));
    of_making.push_back(fmt::format("{:.2f}", row.of_casadi.compiler));
    of_making.push_back(fmt::format("{:.0f}", row.of_casadi.kilobytes));
    made.add(of_making);
  }
  times.print();
  fmt::print("\n");
  made.print();
  return differ == 0 ? 0 : 1;
}
