// What is not in the databases, on the device under test: each gives there what it gives on the CPU.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <thread>

#include "device/on_the_device.h"
#include "tower/nn.h"
#include "tower/tower.h"

namespace {

using Made = std::function<Tensors(const at::TensorOptions& doubles)>;

struct Feature {
  const char* name;
  Made run;
};

// All of its elements depend on each other.
Tensor mixed(const Tensor& x) { return x.cumsum(0).sin() * x.exp().mean(); }
Tensor energy(const Tensor& x) { return mixed(x).square().sum() + x.prod(); }
Tensor in_two_places(const Tensor& x) {
  Tensor y = at::zeros_like(x);
  y[0] = x.sum();
  y.slice(0, 1) += x.slice(0, 1).exp();
  return y.square().sum();
}
Tensor newton(const Tensor& a) {
  Tensor x = at::ones_like(a);
  for (int k = 0; k < 30; ++k) x = x - (x * x * x + x - a) / (3 * x * x + 1);
  return x;
}
Tensor tridiagonal(const Tensor& u) {
  const Tensor padded = at::constant_pad_nd(u, {1, 1});
  return u.pow(3) + 2 * u - padded.narrow(0, 0, u.size(0)) - padded.narrow(0, 2, u.size(0));
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> all{
      {"jacobians",
       [](const auto& o) {
         const Tensor x = some({3}, o), xs = some({2, 3}, o);
         return Tensors{tower::jacfwd(mixed)(x),
                        tower::jacrev(mixed)(x),
                        tower::hessian(energy)(x),
                        tower::vmap(tower::jacfwd(mixed))(xs),
                        tower::vmap(tower::jacrev(mixed))(xs),
                        tower::vmap(tower::hessian(energy))(xs)};
       }},
      {"products",
       [](const auto& o) {
         const Tensor x = some({3}, o), v = some({3}, o, 0.7);
         return Tensors{tower::hvp(energy, x, v).second, tower::linearize(mixed, x).second(v),
                        tower::vjp(mixed, x).second(v), tower::jvp(mixed, x, v).second};
       }},
      {"writes",
       [](const auto& o) {
         const Tensor xs = some({2, 3}, o);
         return Tensors{tower::vmap(in_two_places)(xs), tower::vmap(tower::grad(in_two_places))(xs),
                        tower::hessian(in_two_places)(xs[0])};
       }},
      {"cond",
       [](const auto& o) {
         const auto root = [](const Tensor& x) {
           return tower::cond(
               x > 0, [](const Tensor& v) { return v.sqrt(); }, [](const Tensor& v) { return at::zeros_like(v); }, x);
         };
         const Tensor xs = some({5}, o);
         return Tensors{root(xs[0]), tower::vmap(root)(xs), tower::vmap(tower::grad(root))(xs)};
       }},
      {"while_loop",
       [](const auto& o) {
         const auto heron = [](const Tensor& a) {
           return tower::while_loop([a](const Tensor& y) { return (y * y - a).abs() > 1e-12 * a; },
                                    [a](const Tensor& y) { return (y + a / y) / 2; }, at::ones_like(a),
                                    {.compact = 0.5});
         };
         const Tensor as = some({5}, o).abs() * 100 + 1;
         return Tensors{heron(as[0]), tower::vmap(heron)(as), tower::vmap(tower::grad(heron))(as),
                        tower::vmap(tower::jacfwd(heron))(as)};
       }},
      {"scan",
       [](const auto& o) {
         const auto f = [](const Tensor& x) {
           const auto [last, all] = tower::scan(
               [](const Tensor& carry, const Tensor& e) { return std::pair(carry * 0.5 + e.sin(), carry * e); },
               at::zeros({}, x.options()), x);
           return last * all.sum();
         };
         const auto g = [](const Tensor& x) {
           return tower::associative_scan([](const Tensor& a, const Tensor& b) { return a * b; }, x).sum();
         };
         const auto h = [](const Tensor& x) {
           return tower::fori_loop(
                      0, 4, [](int64_t k, const Tensor& s) { return (s * 0.5 + k).sin(); }, x)
               .sum();
         };
         const Tensor xs = some({2, 4}, o);
         return Tensors{tower::vmap(tower::grad(f))(xs), tower::vmap(tower::grad(g))(xs),
                        tower::vmap(tower::grad(h))(xs)};
       }},
      {"checkpoint",
       [](const auto& o) {
         const Tensor x = some({3}, o);
         return Tensors{tower::grad(tower::checkpoint(energy))(x), tower::hessian(tower::checkpoint(energy))(x)};
       }},
      {"implicit functions",
       [](const auto& o) {
         const auto f =
             tower::implicit_root([](const Tensor& x, const Tensor& a) { return x * x * x + x - a; }, newton);
         const auto summed = [f](const Tensor& a) { return f(a).sum(); };
         const Tensor a = some({3}, o), as = some({2, 3}, o);
         return Tensors{f(a), tower::grad(summed)(a), tower::vmap(tower::hessian(summed))(as), tower::jacfwd(f)(a)};
       }},
      {"iterative methods",
       [](const auto& o) {
         const Tensor a = some({3, 3}, o), b = some({3}, o), v = some({2, 3}, o);
         const Tensor definite = a.mT().matmul(a) + at::eye(3, o);
         Tensors found;
         const auto keep = [&](const auto& solve) {
           found.push_back(solve(b));
           found.push_back(tower::vmap(solve)(v));
           found.push_back(tower::grad([solve](const Tensor& b) { return solve(b).square().sum(); })(b));
         };
         const auto apply = [definite](const Tensor& x) { return definite.matmul(x); };
         keep([apply](const Tensor& b) { return tower::cg(apply, b, {.tolerance = 1e-13}).x; });
         keep([apply](const Tensor& b) { return tower::gmres(apply, b, {.tolerance = 1e-13}).x; });
         keep([apply](const Tensor& b) { return tower::bicgstab(apply, b, {.tolerance = 1e-13}).x; });
         keep([apply](const Tensor& b) { return tower::linear_solve(apply, b); });
         return found;
       }},
      {"sparse Jacobians",
       [](const auto& o) {
         const Tensor u = some({5}, o);
         const auto jacobian = tower::sparse_jacobian(tridiagonal, tower::jacobian_sparsity(tridiagonal, u));
         const auto summed = [](const Tensor& u) { return tridiagonal(u).square().sum(); };
         const auto hessian = tower::sparse_hessian(summed, tower::hessian_sparsity(summed, u));
         return Tensors{jacobian.values(u), hessian.values(u)};
       }},
      {"compiled functions",
       [](const auto& o) {
         const Tensor xs = some({4, 3}, o);
         const auto f = tower::compile(tower::vmap(tower::jacfwd(mixed)));
         const auto g = tower::vmap(tower::grad(tower::compile(energy)));
         return Tensors{f(xs), f(xs * 2), g(xs), g(xs * 2)};
       }},
      {"modules",
       [](const auto& o) {
         torch::nn::Linear net(3, 1);
         // LibTorch moves no module to a backend at PrivateUse1 (set_data), so these stand for its parameters.
         const tower::NamedTensors params{{"weight", some({1, 3}, o)}, {"bias", some({1}, o, 0.7)}};
         const auto loss = [&](const tower::NamedTensors& p, const Tensor& x) {
           return tower::functional_call(net, p, {}, x).square().sum();
         };
         const auto gradients = tower::vmap(tower::grad(loss), {.in_dims = {std::nullopt, 0}})(params, some({5, 3}, o));
         return Tensors{gradients.at("weight"), gradients.at("bias")};
       }},
      {"backward through a transform", [](const auto& o) {
         const Tensor xs = some({2, 3}, o).requires_grad_();
         tower::vmap(tower::grad(energy))(xs).square().sum().backward();
         return Tensors{xs.grad()};
       }}};
  return all;
}

TEST_F(OnTheDevice, FeaturesGiveWhatTheyGiveOnTheCpu) {
  for (const auto& [name, run] : features()) {
    SCOPED_TRACE(name);
    try {
      const Tensors expected = run(at::dtype(at::kDouble)), actual = run(doubles());
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t k = 0; k < actual.size(); ++k)
        EXPECT_EQ(support::difference(actual[k], expected[k].to(support::device()), {1e-9, 1e-9}), "")
            << "tensor " << k;
    } catch (const std::exception& error) {
      ADD_FAILURE() << std::string(error.what()).substr(0, 600);
    }
  }
}

TEST_F(OnItsStreams, FeaturesRunOnTheCurrentOne) {
  for (const auto& [name, run] : features()) {
    SCOPED_TRACE(name);
    synchronize();
    const Tensors found = aside([&] { return run(doubles()); });
    EXPECT_TRUE(main_->query()) << "something was queued on the default stream";
    side_->synchronize();
  }
}

TEST_F(OnTheDevice, DerivativesCanBeChecked) { tower::check_grads(mixed, some({3}), 2); }

// Outside, the engine has a thread for the device; the levels of a transform are those of the thread that runs it.
TEST_F(OnTheDevice, LibTorchsEngineStaysOnTheThreadOfATransform) {
  std::thread::id ran;
  const Tensor w = some({3}).requires_grad_(), y = w.square().sum();
  w.register_hook([&](const Tensor&) { ran = std::this_thread::get_id(); });
  const auto backward = [&] { return torch::autograd::grad({y}, {w}, {}, /*retain_graph=*/true)[0]; };
  const auto f = [&](const Tensor& x) {
    tower::grad(energy)(x);
    return (x * backward()).sum();
  };
  const Tensor xs = some({2, 3});
  const Tensor gradient = backward();
  EXPECT_NE(ran, std::this_thread::get_id());
  EXPECT_TRUE(same(tower::vmap(f)(xs), (xs * gradient).sum(1)));
  EXPECT_EQ(ran, std::this_thread::get_id());
  EXPECT_THROW(tower::grad([&](const Tensor& x) -> Tensor { TORCH_CHECK(false, x.dim()); })(xs), c10::Error);
  backward();
  EXPECT_NE(ran, std::this_thread::get_id());
}

TEST_F(OnTheDevice, TheCurrentDeviceIsLeftAsItWas) {
  const c10::impl::VirtualGuardImpl impl(support::device().type());
  const c10::Device before = impl.getDevice();
  tower::vmap(tower::grad(energy))(some({2, 3}));
  EXPECT_EQ(impl.getDevice(), before);
}

}  // namespace
