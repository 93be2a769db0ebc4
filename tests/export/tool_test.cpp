// The command tower-export: a model of Python's as a C library, whose derivative is that of the model by finite
// differences.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tower/exported.h>

#include <cstdlib>
#include <filesystem>

#include "compile/kernels.h"
#include "export/c_library.h"
#include "support/prelude.h"

namespace {

using export_tests::output_of;
using support::Folder;

// Not where there is no CLI11.
#ifdef TOWER_EXPORT_TOOL
constexpr const char* kTool = TOWER_EXPORT_TOOL;
constexpr const char* kModel = TOWER_EXPORTED_MODEL;
#else
constexpr const char *kTool = "", *kModel = "";
#endif

#if __has_include(<nlohmann/json.hpp>) && defined(TOWER_EXPORT_TOOL)
constexpr bool kReadsModels = true;
#else
constexpr bool kReadsModels = false;
#endif

#define TOWER_NEEDS_MODELS_IN_C()                     \
  TOWER_NEEDS_LLVM();                                 \
  if (!kReadsModels || !export_tests::has_compiler()) \
  GTEST_SKIP() << "there is no C compiler, or no command, or models are not read"

// A library that the command wrote, of a function of places of molecules.
class Library {
 public:
  Library(const Folder& folder, const std::string& name) {
    const std::string base = folder / name;
    output_of("cc -O1 -shared -fPIC " + base + ".c " + base + "_kernels.o -o " + base + ".so -lm");
    library_ = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error(dlerror());
    function_ = reinterpret_cast<decltype(function_)>(dlsym(library_, name.c_str()));
    work_bytes_ = reinterpret_cast<decltype(work_bytes_)>(dlsym(library_, (name + "_work_bytes").c_str()));
  }
  ~Library() { dlclose(library_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  Tensor operator()(int64_t n, const Tensor& places, const Tensor& like) const {
    Tensor result = at::full_like(like, 7);
    std::vector<char> work(static_cast<size_t>(work_bytes_(n)));
    const void* x[] = {places.const_data_ptr()};
    void* y[] = {result.mutable_data_ptr()};
    EXPECT_EQ(function_(n, x, y, work.data()), 0);
    return result;
  }

 private:
  void* library_;
  int (*function_)(int64_t, const void* const*, void* const*, void*);
  int64_t (*work_bytes_)(int64_t);
};

TEST(ExportTool, WritesAModelAndItsDerivatives) {
  TOWER_NEEDS_MODELS_IN_C();
  const Folder folder;
  const std::string tool = std::string(kTool) + " " + kModel + " --folder " + folder.path();
  output_of(tool + " --name energy");
  EXPECT_NE(output_of(tool + " --name slope --derivative grad --by places --target x86-64 --also s,ll").find("slope.h"),
            std::string::npos);
  for (const char* text : {"slope_kernel0.s", "slope_kernel0.ll"}) EXPECT_TRUE(std::filesystem::exists(folder / text));
  output_of(tool + " --name curvature --derivative hessian --batch none");

  const auto model = tower::load_exported<Tensor(Tensor)>(kModel);
  const Tensor one = at::tensor({0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -0.2, 0.95, 0.0}, at::kDouble).view({3, 3});
  const Tensor places = one + waves({5, 3, 3}) * 0.1, none = at::zeros({5}, at::kDouble);
  const auto energies = [&](const Tensor& x) {
    Tensors all;
    for (const Tensor& molecule : x.unbind(0)) all.push_back(model(molecule));
    return at::stack(all);
  };
  EXPECT_TRUE(at::allclose(Library(folder, "energy")(5, places, none), energies(places), 1e-13, 1e-13));

  const Library slope(folder, "slope");
  const Tensor slopes = slope(5, places, places),
               curvature = Library(folder, "curvature")(1, places[0].contiguous(), at::zeros({81}, at::kDouble));
  const auto slope_of_one = [&](const Tensor& x) { return slope(1, x, x); };
  constexpr double kStep = 1e-5;
  for (int64_t k = 0; k < 9; ++k) {
    Tensor step = at::zeros({9}, at::kDouble);
    step[k] = kStep;
    step = step.view({3, 3});
    EXPECT_TRUE(at::allclose(slopes.view({5, 9}).select(1, k),
                             (energies(places + step) - energies(places - step)) / (2 * kStep), 1e-6, 1e-7));
    EXPECT_TRUE(at::allclose(curvature.view({9, 9})[k].view({3, 3}),
                             (slope_of_one(places[0] + step) - slope_of_one(places[0] - step)) / (2 * kStep), 1e-5,
                             1e-6));
  }
}

TEST(ExportTool, SaysItsOptions) {
  TOWER_NEEDS_MODELS_IN_C();
  EXPECT_TRUE(says(output_of(std::string(kTool) + " --help"),
                   {"FILE", "--derivative", "jacrev", "--by", "--batch", "--size NAME=NUMBER", "--name", "--folder",
                    "--target", "x86-64-v3", "--also", "--casadi", "--model"}));
}

TEST(ExportTool, SaysWhatIsWrongWithWhatItIsTold) {
  TOWER_NEEDS_MODELS_IN_C();
  const Folder folder;
  const auto said = [&](const std::string& words) {
    return output_of("! " + std::string(kTool) + " " + words + " --folder " + folder.path());
  };
  const std::string model = std::string(kModel) + " ";
  EXPECT_TRUE(says(said(""), {"FILE", "required", "--help"}));
  EXPECT_TRUE(says(said(model + model), {"not expected", kModel}));
  EXPECT_TRUE(says(said(model + "--deriv grad"), {"not expected", "--deriv"}));
  EXPECT_TRUE(says(said(model + "--derivative jacobian"), {"none,grad,jacfwd,jacrev,hessian", "jacobian"}));
  EXPECT_TRUE(says(said(model + "--derivative grad --derivative hessian"), {"--derivative"}));
  EXPECT_TRUE(says(said(model + "--derivative grad --by speeds"), {"--by", "no tensor speeds", "places"}));
  EXPECT_TRUE(says(said(model + "--size s0=many"), {"--size", "'many' is no size"}));
  EXPECT_TRUE(says(said(model + "--size 7"), {"--size", "NAME=NUMBER, not 7"}));
  EXPECT_TRUE(says(said(model + "--target pdp11"), {"'pdp11'", "x86-64-v3", "aarch64"}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
