// Saved functions whose inside was altered and sealed again, so that the digest is right: to load one is Tower's error
// or works, and takes neither much time nor much memory. What works is not called: nobody can tell whether machine code
// is what it was. TOWER_FORGED_FILES says how many files there are to be.
#include <sys/resource.h>
#include <tower/checkpoint.h>
#include <tower/compile.h>
#include <tower/cond.h>
#include <tower/loops.h>
#include <tower/transforms.h>

#include <chrono>
#include <fstream>
#include <random>

#include "compile/files.h"
#include "compile/kernels.h"
#include "kernels/checked_file.h"
#include "support/prelude.h"

namespace {

using support::Folder;
using tower::compiler::read_file;
using tower::compiler::write_file;

// ---- what is saved -------------------------------------------------------------------------------------------------

struct Saved {
  const char* name;
  void (*save)(const std::string& path);
  void (*load)(const std::string& path);
};

using One = Tensor(Tensor);
using Two = Tensor(Tensor, Tensor);
using Listed = std::pair<Tensor, int>(Tensor, double, std::string, std::vector<Tensor>);

Tensor residual(const Tensor& x, const Tensor& load) {
  const Tensor s = x * x + 0.5;
  return at::cat({s.slice(0, 0, 2) * x.select(0, 2) - load, (s.sum() - load.sum()).unsqueeze(0)});
}
Tensor newton(const Tensor& x, const Tensor& load) {
  return x - at::linalg_solve(tower::jacfwd(residual)(x, load), residual(x, load));
}

const Saved kSaved[] = {
    {"a family of graphs, unrolled",
     [](const std::string& path) {
       const auto f = tower::compile(tower::vmap(newton));
       for (const int64_t n : {16, 24, 1000}) f(waves({n, 3}) + 2, waves({n, 2}, 0.7));
       f.save(path);
     },
     [](const std::string& path) { tower::load<Two>(path); }},
    {"constants and writes",
     [](const std::string& path) {
       const Tensor weight = waves({4}), count = at::zeros({2}, at::kDouble), part = count.select(0, 1);
       const Tensor index = at::tensor({2, 0}), wide = waves({4, 3}).transpose(0, 1);
       const auto f = tower::compile([=](const Tensor& x) {
         count.add_(1);
         return at::index((x * weight).unsqueeze(0).expand({3, 4}) * wide, {index}).sum(1) + part;
       });
       f(waves({4}));
       f.save(path);
     },
     [](const std::string& path) { tower::load<One>(path); }},
    {"images of images, draws and attributes of all kinds",
     [](const std::string& path) {
       const auto f = tower::compile([](const Tensor& x) {
         const tower::Mapping draws{.randomness = tower::Randomness::different};
         const Tensor drawn =
             tower::vmap(tower::vmap([](const Tensor& row) { return row + at::rand_like(row); }, draws), draws)(x);
         const Tensor y = at::cat({drawn.roll({1}, {0}), x.flip({0, 1})}, 1);
         return (y.to(at::kFloat).clamp(-0.5, std::nullopt).softmax(1).sum(at::IntArrayRef({1}), true) +
                 at::conv1d(y.mean(2, true).to(at::kFloat), at::ones({1, 8, 1}, at::kFloat)))
                    .to(at::kComplexDouble) *
                c10::complex<double>(0, 1);
       });
       f(waves({3, 4, 2}));
       f.save(path);
     },
     [](const std::string& path) { tower::load<One>(path); }},
    {"steps of a loop",
     [](const std::string& path) {
       const auto f = tower::compile(tower::vmap(tower::grad([](const Tensor& x) {
         Tensor y = x;
         for (int i = 0; i < 6; ++i) y = y + 0.1 * (y.sin() * x - y);
         return y.sum();
       })));
       for (const int64_t n : {5, 9}) f(waves({n, 3}));
       f.save(path);
     },
     [](const std::string& path) { tower::load<One>(path); }},
    {"loops that are one call, both ways",
     [](const std::string& path) {
       const auto f = tower::compile(tower::vmap(tower::grad([](const Tensor& x) {
         const auto [last, outputs] =
             tower::scan([x](const Tensor& s, const Tensor& u) { return std::pair((s * x).sin() + u, s.cos()); }, x,
                         at::linspace(0, 1, 10, at::kDouble));
         return tower::while_loop([](const Tensor& s) { return s.norm() > 0.1; },
                                  [x](const Tensor& s) { return 0.5 * s * x.cos(); }, last + outputs.sum(0),
                                  {.max_steps = 90})
             .sum();
       })));
       for (const int64_t n : {5, 9}) f(waves({n, 3}));
       f.save(path);
     },
     [](const std::string& path) { tower::load<One>(path); }},
    {"choices, in each other and in a loop",
     [](const std::string& path) {
       const auto f = tower::compile(tower::vmap(tower::grad([](const Tensor& x) {
         const auto inner = [x](const Tensor& y) {
           return tower::cond(
               y.sum() > 1, [x](const Tensor& v) { return v * x; }, [](const Tensor& v) { return 0.9 * v.sin(); }, y);
         };
         const Tensor y = tower::while_loop([](const Tensor& s) { return s.norm() > 0.5; },
                                            [=](const Tensor& s) { return 0.9 * inner(s); }, x, {.max_steps = 40});
         return tower::cond(
                    x.sum() > 0, inner, [](const Tensor& v) { return v.sin(); }, y)
             .sum();
       })));
       for (const int64_t n : {5, 9}) f(waves({n, 3}));
       f.save(path);
     },
     [](const std::string& path) { tower::load<One>(path); }},
    {"checkpoints, of a loop",
     [](const std::string& path) {
       const auto f = tower::compile(tower::vmap(tower::grad([](const Tensor& x) {
         const auto block = [x](const Tensor& y) {
           return tower::while_loop([](const Tensor& s) { return s.norm() > 0.5; },
                                    [x](const Tensor& s) { return 0.9 * s * x.cos(); }, y, {.max_steps = 40});
         };
         return tower::checkpoint(block)(x.sin()).sum();
       })));
       for (const int64_t n : {5, 9}) f(waves({n, 3}));
       f.save(path);
     },
     [](const std::string& path) { tower::load<One>(path); }},
    {"static arguments",
     [](const std::string& path) {
       const auto f =
           tower::compile([](const Tensor& x, double dt, const std::string& how, const std::vector<Tensor>& all) {
             return std::pair(x + dt * all.at(0) * (how == "half" ? 0.5 : 1.0), static_cast<int>(all.size()));
           });
       f(waves({4}), 0.5, std::string("half"), std::vector<Tensor>{waves({4})});
       f(waves({4}), 0.25, std::string("whole"), std::vector<Tensor>{waves({4}), waves({2})});
       f.save(path);
     },
     [](const std::string& path) { tower::load<Listed>(path); }},
};

// ---- how it is altered ---------------------------------------------------------------------------------------------

class Forger {
 public:
  explicit Forger(uint64_t seed) : random_(seed) {}

  std::string altered(std::string bytes) {
    for (size_t n = 1 + below(3); n-- > 0 && !bytes.empty();) alter(bytes);
    return bytes.empty() ? "x" : bytes;
  }
  size_t below(size_t n) { return random_() % n; }

 private:
  void alter(std::string& bytes) {
    const size_t at = below(bytes.size());
    switch (below(8)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random_());
        break;
      case 2:
      case 3: {  // a number, of those that are one
        const int64_t numbers[] = {0,  1,   -1,   2,       3,         7,         63,        64,
                                   65, 255, 4096, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN, int64_t{1} << 40};
        const size_t place = number_from(bytes, at);
        if (bytes.size() - place >= sizeof(int64_t))
          std::memcpy(bytes.data() + place, &numbers[below(std::size(numbers))], sizeof(int64_t));
        break;
      }
      case 4: {  // one more or less
        const size_t place = number_from(bytes, at);
        bytes[place] = static_cast<char>(bytes[place] + (below(2) ? 1 : -1));
        break;
      }
      case 5:
        bytes.erase(at, 1 + below(16));
        break;
      case 6:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(64)));
        break;
      default: {  // a part of it elsewhere
        const size_t from = below(bytes.size()),
                     n = std::min({size_t{8} << below(4), bytes.size() - at, bytes.size() - from});
        bytes.replace(at, n, bytes.substr(from, n));
      }
    }
  }
  // Where, from `at` on, a small number is likely to begin: a byte that is followed by seven zeros.
  static size_t number_from(const std::string& bytes, size_t at) {
    const size_t zeros = bytes.find(std::string(7, '\0'), at);
    return zeros == std::string::npos || zeros == 0 ? at : zeros - 1;
  }
  std::mt19937_64 random_;
};

// For as long as it lives, memory is no more than what there is and a little.
class LittleMemory {
 public:
  LittleMemory() {
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    getrlimit(RLIMIT_AS, &before_);
    struct rlimit little = before_;
    little.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
    setrlimit(RLIMIT_AS, &little);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }

 private:
  struct rlimit before_ {};
};

TEST(ForgedFiles, AreRefusedByTowersErrorsOrLoaded) {
  const char* wanted = std::getenv("TOWER_FORGED_FILES");
  const int each = (wanted ? std::atoi(wanted) : 2000) / static_cast<int>(std::size(kSaved));
  const Folder folder;
  int refused = 0, loaded = 0;
  double slowest = 0;
  for (const Saved& saved : kSaved) {
    SCOPED_TRACE(saved.name);
    saved.save(folder / "whole");
    saved.load(folder / "whole");
    const std::string file = *read_file(folder / "whole"), whole(tower::compiler::unsealed(file));
    for (int i = 0; i < each; ++i) {
      const std::string bytes = Forger(static_cast<uint64_t>(i) + 1).altered(whole);
      ASSERT_EQ(write_file(folder / "forged", tower::compiler::sealed(bytes)), "");
      const auto start = std::chrono::steady_clock::now();
      std::string text;
      try {
        const LittleMemory little;
        saved.load(folder / "forged");
        ++loaded;
      } catch (const tower::ArgumentError& e) {
        text = e.what();
        ++refused;
      } catch (const tower::UnsupportedError& e) {
        text = e.what();
        ++refused;
      } catch (const std::exception& e) {
        ADD_FAILURE() << "file " << i << ": " << typeid(e).name() << ": " << std::string(e.what()).substr(0, 300);
      }
      EXPECT_FALSE(contains(text, "allocate")) << "file " << i << ": " << text;
      slowest = std::max(slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  EXPECT_LT(slowest, 5);
  EXPECT_GT(refused, loaded / 10);
  std::cout << refused << " refused, " << loaded << " loaded, the slowest in " << slowest * 1e3 << " ms\n";
}

}  // namespace
