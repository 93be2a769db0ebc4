// The material as a library with Abaqus's interface: exported, built by the system's C compiler, and loaded.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "material.h"

namespace umat {

using Six = std::array<double, 6>;
using Matrix = std::array<Six, 6>;

/// A step of one point by the library.
struct Answer {
  Six stress;
  double plastic_strain;
  Matrix tangent;           // ∂σᵢ/∂Δεⱼ
  double shorter_step = 1;  // PNEWDT
};

/// Writes umat_point.h, umat_point.c, umat_point_kernels.o, … to the folder, and libumat.so.
inline void make_library(const std::string& folder) {
  const auto points = tower::compile(tower::vmap(point));
  for (const int64_t n : {2, 3}) {  // two numbers of points: then it is for any
    const at::TensorOptions f64 = at::kDouble;
    const Tensor strain = 1e-3 * at::rand({n, 6}, f64);
    const Tensor properties = at::tensor({200'000.0, 0.3, 250.0, 0.002}, f64).repeat({n, 1});
    points(at::zeros({n, 6}, f64), strain, at::zeros({n}, f64), properties);
  }
  tower::export_c(points, "umat_point", {.folder = folder});
  const std::string command = fmt::format(
      "cd '{0}' && cc -std=c99 -O2 -shared -fPIC -I. '{1}/umat/umat.c' umat_point.c umat_point_kernels.o "
      "-o libumat.so -lm",
      folder, TOWER_EXAMPLES_DIR);
  if (std::system(command.c_str()) != 0) throw std::runtime_error("the C compiler (cc) failed");
}

/// `umat_` of a library.
class Umat {
 public:
  explicit Umat(const std::string& path) : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) throw std::runtime_error(dlerror());
    function_ = reinterpret_cast<Function*>(dlsym(library_, "umat_"));
    if (!function_) throw std::runtime_error(dlerror());
  }
  ~Umat() { dlclose(library_); }
  Umat(const Umat&) = delete;
  Umat& operator=(const Umat&) = delete;

  Answer operator()(const Six& stress, double plastic_strain, const Six& increment,
                    const std::array<double, 4>& properties) const {
    Answer a{stress, plastic_strain, {}, 1};
    std::array<double, 36> by_columns{};
    const int three = 3, six = 6, one = 1, four = 4;
    double unused[6] = {};
    const double zero[9] = {};
    const char name[81] = "SWIFT";
    function_(a.stress.data(), &a.plastic_strain, by_columns.data(), unused, unused, unused, unused, unused, unused,
              unused, zero, increment.data(), zero, zero, zero, zero, zero, zero, name, &three, &three, &six, &one,
              properties.data(), &four, zero, zero, &a.shorter_step, zero, zero, zero, &one, &one, &one, &one, &one,
              &one, 80);
    for (size_t i = 0; i < 6; ++i)
      for (size_t j = 0; j < 6; ++j) a.tangent[i][j] = by_columns[i + 6 * j];
    return a;
  }

 private:
  using Function = void(double*, double*, double*, double*, double*, double*, double*, double*, double*, double*,
                        const double*, const double*, const double*, const double*, const double*, const double*,
                        const double*, const double*, const char*, const int*, const int*, const int*, const int*,
                        const double*, const int*, const double*, const double*, double*, const double*, const double*,
                        const double*, const int*, const int*, const int*, const int*, const int*, const int*, int);
  void* library_;
  Function* function_;
};

}  // namespace umat
