// torch::nn modules under the transforms. The oracle is the module itself, called with its own parameters set to the
// given values, one example at a time, with LibTorch's autograd for gradients.
#include "tower/nn.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "support/prelude.h"
#include "tower/tower.h"

namespace {

namespace nn = torch::nn;
using tower::NamedTensors;

/// Two layers and a buffer; the second layer's weight is also used, transposed, on the way out.
struct NetImpl : nn::Module {
  NetImpl() {
    to_hidden = register_module("to_hidden", nn::Linear(3, 4));
    mix = register_module("mix", nn::Linear(nn::LinearOptions(4, 4).bias(false)));
    tied = register_module("tied", mix);
    scale = register_buffer("scale", at::full({4}, 2.0));
    shift = register_parameter("shift", at::zeros({3}));
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x, bool squash = true) {
    const Tensor hidden = to_hidden(x + shift) * scale;
    const Tensor mixed = tied(mix(hidden));
    return squash ? mixed.tanh() : mixed;
  }
  nn::Linear to_hidden{nullptr}, mix{nullptr}, tied{nullptr};
  Tensor scale, shift;
};
TORCH_MODULE(Net);

nn::Sequential small_network() {
  nn::Sequential net(nn::Linear(3, 5), nn::Functional(at::tanh), nn::Dropout(0.5), nn::Linear(5, 2));
  net->to(at::kDouble);
  net->eval();
  return net;
}

/// Different values of the same shapes.
NamedTensors changed(NamedTensors tensors) {
  for (auto& [name, value] : tensors) value = value * 0.5 + 0.1;
  return tensors;
}

/// Holds a functional call against the module with its parameters overwritten, and says that the module was not
/// touched.
template <class Holder, class... Inputs>
void expect_call_is_that_of_the_module(Holder& module, const Inputs&... inputs) {
  const NamedTensors before = tower::parameters_of(module);
  const NamedTensors params = changed(before);
  const auto result = tower::functional_call(module, params, {}, inputs...);
  NamedTensors copies;
  for (const auto& [name, value] : before) copies[name] = value.clone();
  c10::NoGradGuard no_grad;
  for (const auto& [name, value] : before) EXPECT_TRUE(same(value, copies.at(name)));
  EXPECT_FALSE(tower::leaves_of(result)[0].equal(tower::leaves_of(module->forward(inputs...))[0]));
  for (auto& [name, value] : before) Tensor(value).copy_(params.at(name));
  EXPECT_TRUE(same(tower::leaves_of(result)[0].detach(), tower::leaves_of(module->forward(inputs...))[0]));
  for (auto& [name, value] : before) Tensor(value).copy_(copies.at(name));
}

/// Holds vmap(grad) of a loss over examples against LibTorch's autograd of one example after the other.
template <class Holder>
void expect_gradients_are_those_of_a_loop(Holder& module, const Tensor& examples) {
  const auto loss = [&](const NamedTensors& p, const Tensor& x) {
    return tower::functional_call(module, p, {}, x).square().sum();
  };
  const NamedTensors params = tower::parameters_of(module);
  const NamedTensors all = tower::vmap(tower::grad(loss), {.in_dims = {std::nullopt, 0}})(params, examples);
  ASSERT_EQ(all.size(), params.size());
  for (int64_t i = 0; i < examples.size(0); ++i) {
    module->zero_grad();
    module->forward(examples[i]).square().sum().backward();
    const auto own = module->named_parameters();
    for (const auto& [name, value] : params) EXPECT_TRUE(same(all.at(name)[i], own[name].grad())) << name << " " << i;
  }
  module->zero_grad();
}

TEST(Modules, ParametersAndBuffersAreListedByNameWithoutHistory) {
  Net net;
  const NamedTensors params = tower::parameters_of(net);
  std::vector<std::string> names;
  for (const auto& [name, value] : params) {
    names.push_back(name);
    EXPECT_FALSE(value.requires_grad()) << name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"mix.weight", "shift", "to_hidden.bias", "to_hidden.weight"}));
  EXPECT_EQ(params.at("shift").data_ptr(), net->shift.data_ptr());
  const NamedTensors buffers = tower::buffers_of(*net);
  ASSERT_EQ(buffers.size(), 1U);
  EXPECT_TRUE(buffers.at("scale").equal(net->scale));
}

TEST(Modules, AreGivenAsReferencesPointersOrHolders) {
  Net net;
  const std::shared_ptr<NetImpl> pointer = net.ptr();
  const NamedTensors params = changed(tower::parameters_of(pointer));
  const Tensor x = waves({2, 3});
  const Tensor y = tower::functional_call(net, params, {}, x);
  EXPECT_TRUE(tower::functional_call(*net, params, {}, x).equal(y));
  EXPECT_TRUE(tower::functional_call(pointer, params, {}, x).equal(y));
  EXPECT_FALSE(net->forward(x).equal(y));
}

TEST(Modules, AreCalledWithTheGivenParameters) {
  at::manual_seed(0);
  const Tensor x = waves({2, 3});
  nn::Linear linear(nn::LinearOptions(3, 2));
  linear->to(at::kDouble);
  expect_call_is_that_of_the_module(linear, x);
  Net net;
  expect_call_is_that_of_the_module(net, x, false);
  nn::Conv2d conv(nn::Conv2dOptions(1, 2, 2).stride(2));
  conv->to(at::kDouble);
  expect_call_is_that_of_the_module(conv, waves({4, 4}).view({1, 1, 4, 4}));
  nn::Sequential sequential = small_network();
  expect_call_is_that_of_the_module(sequential, x);
  nn::LSTM lstm(nn::LSTMOptions(3, 4).num_layers(2));
  lstm->to(at::kDouble);
  expect_call_is_that_of_the_module(lstm, waves({5, 6}).view({5, 2, 3}));
}

TEST(Modules, BuffersAreGivenToo) {
  nn::BatchNorm1d norm(3);
  norm->to(at::kDouble);
  norm->eval();
  const Tensor x = waves({4, 3}), mean = waves({1, 3})[0], var = waves({1, 3})[0].square() + 1;
  const Tensor y = tower::functional_call(norm, {}, {{"running_mean", mean}, {"running_var", var}}, x);
  EXPECT_TRUE(same(y.detach(), (x - mean) / (var + norm->options.eps()).sqrt()));
  EXPECT_TRUE(norm->running_mean.equal(at::zeros({3}, at::kDouble)));
}

TEST(Modules, PerExampleGradientsAreThoseOfALoop) {
  at::manual_seed(1);
  const Tensor xs = waves({5, 3});
  nn::Sequential sequential = small_network();
  expect_gradients_are_those_of_a_loop(sequential, xs);
  Net net;
  expect_gradients_are_those_of_a_loop(net, xs);
  nn::Conv2d conv(nn::Conv2dOptions(2, 3, 2).padding(1));
  conv->to(at::kDouble);
  expect_gradients_are_those_of_a_loop(conv, waves({6, 16}).view({3, 2, 4, 4}));
}

TEST(Modules, RecurrentNetworksHavePerExampleGradients) {
  at::manual_seed(2);
  nn::LSTM lstm(nn::LSTMOptions(3, 2));
  lstm->to(at::kDouble);
  const Tensor sequences = waves({8, 6}).view({2, 4, 2, 3});  // examples, time, batch, features
  const auto loss = [&](const NamedTensors& p, const Tensor& x) {
    return std::get<0>(tower::functional_call(lstm, p, {}, x)).square().sum();
  };
  const NamedTensors params = tower::parameters_of(lstm);
  const NamedTensors all = tower::vmap(tower::grad(loss), {.in_dims = {std::nullopt, 0}})(params, sequences);
  for (int64_t i = 0; i < 2; ++i) {
    lstm->zero_grad();
    std::get<0>(lstm->forward(sequences[i])).square().sum().backward();
    const auto own = lstm->named_parameters();
    for (const auto& [name, value] : params) EXPECT_TRUE(same(all.at(name)[i], own[name].grad())) << name << " " << i;
  }
}

TEST(Modules, BatchNormInEvaluationHasPerExampleGradients) {
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 1));
  net->to(at::kDouble);
  net->eval();
  // Its forward wants a batch, so an example is a batch of one.
  expect_gradients_are_those_of_a_loop(net, waves({5, 3}).unsqueeze(1));
}

TEST(Modules, AnEnsembleIsMappedOverStackedParameters) {
  at::manual_seed(3);
  std::vector<Net> nets(3);
  for (Net& net : nets) net->scale.copy_(waves({1, 4})[0] + net->to_hidden->bias.detach()[0]);
  const auto [params, buffers] = tower::stack_modules(nets);
  EXPECT_EQ(params.at("to_hidden.weight").sizes(), (at::IntArrayRef{3, 4, 3}));
  const Tensor x = waves({2, 3});
  Net& any = nets[0];
  const auto call = [&](const NamedTensors& p, const NamedTensors& b, const Tensor& input) {
    return tower::functional_call(any, p, b, input);
  };
  const Tensor y = tower::vmap(call, {.in_dims = {0, 0, std::nullopt}})(params, buffers, x);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(same(y[i], nets[i]->forward(x).detach())) << i;
}

TEST(Modules, JacobiansAndHessiansOfModulesAgreeWithFiniteDifferences) {
  at::manual_seed(4);
  nn::Sequential net = small_network();
  const Tensor x = waves({1, 3})[0];
  const auto by_params = [&](const NamedTensors& p) { return tower::functional_call(net, p, {}, x); };
  EXPECT_NO_THROW(tower::check_grads(by_params, tower::parameters_of(net), 2));
  const auto by_input = [&](const Tensor& input) {
    return tower::functional_call(net, tower::parameters_of(net), {}, input);
  };
  EXPECT_TRUE(same(tower::jacrev(by_input)(x), tower::jacfwd(by_input)(x)));
}

TEST(Modules, ParametersThatAreNotGivenStayTheModulesOwn) {
  nn::Linear linear(3, 2);
  const Tensor x = at::ones({1, 3}), bias = at::ones({2});
  const Tensor y = tower::functional_call(linear, {{"bias", bias}}, {}, x);
  EXPECT_TRUE(same(y.detach(), (at::mm(x, linear->weight.t()) + bias).detach()));
  // LibTorch's autograd reaches them.
  y.sum().backward();
  EXPECT_TRUE(same(linear->weight.grad(), at::ones({2, 3})));
  EXPECT_FALSE(linear->bias.grad().defined());
}

TEST(Modules, ATiedParameterIsOneWhateverNameItIsGivenUnder) {
  Net net;
  const Tensor x = waves({2, 3}), weight = waves({4, 4});
  const Tensor y = tower::functional_call(net, {{"mix.weight", weight}}, {}, x);
  EXPECT_TRUE(tower::functional_call(net, {{"tied.weight", weight}}, {}, x).equal(y));
  EXPECT_TRUE(tower::functional_call(net, {{"mix.weight", weight}, {"tied.weight", weight}}, {}, x).equal(y));
  const Tensor hidden = (at::mm(x, net->to_hidden->weight.t()) + net->to_hidden->bias) * 2;
  EXPECT_TRUE(same(y.detach(), hidden.mm(weight.t()).mm(weight.t()).tanh().detach()));
  EXPECT_EQ(message_of<tower::ArgumentError>([&] {
              tower::functional_call(net, {{"mix.weight", weight}, {"tied.weight", weight + 1}}, {}, x);
            }),
            "functional_call: \"mix.weight\" and \"tied.weight\" are one tied parameter of the module, but were given "
            "different tensors: give one of them, or both the same");
}

TEST(Modules, WrongNamesAndShapesAreRefused) {
  nn::Linear linear(3, 2);
  const Tensor x = at::ones({1, 3});
  EXPECT_EQ(message_of<tower::ArgumentError>([&] {
              tower::functional_call(linear, {{"weights", x}}, {}, x);
            }),
            "functional_call: the module has no parameter named \"weights\"; it has: weight, bias");
  EXPECT_EQ(message_of<tower::ArgumentError>([&] {
              tower::functional_call(linear, {}, {{"mean", x}}, x);
            }),
            "functional_call: the module has no buffer named \"mean\"; it has: none");
  EXPECT_EQ(message_of<tower::ArgumentError>([&] {
              tower::functional_call(linear, {{"weight", at::ones({3, 2})}}, {}, x);
            }),
            "functional_call: parameter \"weight\" was given with shape [3, 2], but the module's has shape [2, 3]");
  EXPECT_EQ(
      message_of<tower::ArgumentError>([&] {
        tower::functional_call(linear, {{"weight", at::ones({5, 2, 3})}}, {}, x);
      }),
      "functional_call: parameter \"weight\" was given with shape [5, 2, 3], but the module's has shape [2, 3]: map "
      "over its first dimension with vmap");
  EXPECT_EQ(message_of<tower::ArgumentError>([&] {
              tower::functional_call(linear, {{"weight", Tensor()}}, {}, x);
            }),
            "functional_call: parameter \"weight\" is an undefined tensor: leave it out to use the module's own");
  nn::Linear without_bias(nn::LinearOptions(3, 2).bias(false));
  EXPECT_EQ(message_of<tower::ArgumentError>([&] {
              tower::functional_call(without_bias, {{"bias", at::ones({2})}}, {}, x);
            }),
            "functional_call: the module has no parameter named \"bias\"; it has: weight");
  EXPECT_EQ(tower::parameters_of(without_bias).size(), 1U);
}

TEST(Modules, OnlyModulesOfOneArchitectureAreStacked) {
  EXPECT_EQ(message_of<tower::ArgumentError>([] { tower::stack_modules(std::vector<nn::Linear>{}); }),
            "stack_modules: there are no modules to stack");
  EXPECT_EQ(
      message_of<tower::ArgumentError>([] {
        tower::stack_modules(std::vector<nn::Linear>{nn::Linear(2, 3), nn::Linear(2, 4)});
      }),
      "stack_modules: parameter \"bias\" of module 1 is Float[4], but that of module 0 is Float[3]: stack modules of "
      "one architecture");
  EXPECT_EQ(message_of<tower::ArgumentError>([] {
              tower::stack_modules(
                  std::vector<nn::Linear>{nn::Linear(2, 3), nn::Linear(nn::LinearOptions(2, 3).bias(false))});
            }),
            "stack_modules: module 1 has no parameter \"bias\", but module 0 has: stack modules of one architecture");
}

}  // namespace
