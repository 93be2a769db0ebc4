// Writes through views of tensors without dimensions, of one element and of none: LibTorch lets dimensions 0 and -1 of
// a tensor without dimensions be named, and some views then do nothing, others refuse. Each view, and each view of a
// view, under each transform. Oracle: the function itself, without transforms, and its difference quotients. Left out
// are views that transforms refuse to write through (expand({2})) or to take at all (as_strided of a view).

#include <cmath>
#include <sstream>

#include "support/prelude.h"

namespace {

struct ViewOf {
  const char* name;
  Tensor (*of)(const Tensor& t);
};

const ViewOf kViews[] = {
    {"alias", [](const Tensor& t) { return t.alias(); }},
    {"transpose(0, -1)", [](const Tensor& t) { return t.transpose(0, -1); }},
    {"transpose(-1, 0)", [](const Tensor& t) { return t.transpose(-1, 0); }},
    {"swapaxes(0, 0)", [](const Tensor& t) { return t.swapaxes(0, 0); }},
    {"t", [](const Tensor& t) { return t.t(); }},
    {"permute backwards",
     [](const Tensor& t) {
       std::vector<int64_t> order;
       for (int64_t d = t.dim(); d-- > 0;) order.push_back(d - t.dim());
       return t.permute(order);
     }},
    {"movedim(0, -1)", [](const Tensor& t) { return t.movedim(0, -1); }},
    {"squeeze", [](const Tensor& t) { return t.squeeze(); }},
    {"squeeze(0)", [](const Tensor& t) { return t.squeeze(0); }},
    {"squeeze({-1})", [](const Tensor& t) { return t.squeeze(at::IntArrayRef{-1}); }},
    {"unsqueeze(0)", [](const Tensor& t) { return t.unsqueeze(0); }},
    {"unsqueeze(-1)", [](const Tensor& t) { return t.unsqueeze(-1); }},
    {"view(-1)", [](const Tensor& t) { return t.view({-1}); }},
    {"view({})", [](const Tensor& t) { return t.view(at::IntArrayRef{}); }},
    {"view(sizes)", [](const Tensor& t) { return t.view(t.sizes()); }},
    {"view_as of more dimensions", [](const Tensor& t) { return t.view_as(t.unsqueeze(0)); }},
    {"flatten", [](const Tensor& t) { return t.flatten(); }},
    {"flatten(0, -1)", [](const Tensor& t) { return t.flatten(0, -1); }},
    {"unflatten(-1, {1, -1})",
     [](const Tensor& t) {
       return t.unflatten(-1, {1, -1});
     }},
    {"ravel", [](const Tensor& t) { return t.ravel(); }},
    {"contiguous", [](const Tensor& t) { return t.contiguous(); }},
    {"expand({})", [](const Tensor& t) { return t.expand(at::IntArrayRef{}); }},
    {"expand(sizes)", [](const Tensor& t) { return t.expand(t.sizes()); }},
    {"expand({1, 1})",
     [](const Tensor& t) {
       return t.expand({1, 1});
     }},
    {"expand({0})", [](const Tensor& t) { return t.expand({0}); }},
    {"select(0, 0)", [](const Tensor& t) { return t.select(0, 0); }},
    {"select(-1, -1)", [](const Tensor& t) { return t.select(-1, -1); }},
    {"slice(0, 0, 1)", [](const Tensor& t) { return t.slice(0, 0, 1); }},
    {"slice(-1, 1)", [](const Tensor& t) { return t.slice(-1, 1); }},
    {"narrow(0, 0, 1)", [](const Tensor& t) { return t.narrow(0, 0, 1); }},
    {"narrow(0, 0, 0)", [](const Tensor& t) { return t.narrow(0, 0, 0); }},
    {"diagonal", [](const Tensor& t) { return t.diagonal(); }},
    {"diagonal(1)", [](const Tensor& t) { return t.diagonal(1); }},
    {"unfold(0, 1, 1)", [](const Tensor& t) { return t.unfold(0, 1, 1); }},
    {"unfold(-1, 0, 1)", [](const Tensor& t) { return t.unfold(-1, 0, 1); }},
    {"unbind's first", [](const Tensor& t) { return t.unbind(0).at(0); }},
    {"split's last", [](const Tensor& t) { return t.split(1, -1).back(); }},
    {"split_with_sizes' last",
     [](const Tensor& t) {
       return t.split_with_sizes({0, 1}, 0).back();
     }},
    {"chunk's first", [](const Tensor& t) { return t.chunk(2).at(0); }},
    {"as_strided({}, {})", [](const Tensor& t) { return t.as_strided(at::IntArrayRef{}, at::IntArrayRef{}, 0); }},
    {"as_strided({1}, {1})", [](const Tensor& t) { return t.as_strided({1}, {1}, 0); }},
};

struct WriteTo {
  const char* name;
  void (*to)(const Tensor& view, const Tensor& w);
};

const WriteTo kWrites[] = {
    {"add_", [](const Tensor& v, const Tensor& w) { v.add_(w); }},
    {"mul_", [](const Tensor& v, const Tensor& w) { v.mul_(w); }},
    {"sin_", [](const Tensor& v, const Tensor&) { v.sin_(); }},
    {"copy_", [](const Tensor& v, const Tensor& w) { v.copy_(w); }},
    {"fill_", [](const Tensor& v, const Tensor& w) { v.fill_(w); }},
    {"zero_", [](const Tensor& v, const Tensor&) { v.zero_(); }},
    {"masked_fill_", [](const Tensor& v, const Tensor& w) { v.masked_fill_(v > 0, w); }},
    {"index_put_ with a mask", [](const Tensor& v, const Tensor& w) { v.index_put_({v > 0}, w); }},
    {"index_fill_", [](const Tensor& v, const Tensor& w) { v.index_fill_(0, at::zeros({1}, at::kLong), w); }},
    {"cumsum_", [](const Tensor& v, const Tensor&) { v.cumsum_(0); }},
};

const std::vector<std::vector<int64_t>> kShapes = {{}, {1}, {0}, {1, 1}, {0, 2}, {2, 0}, {1, 2}};

using Views = std::vector<const ViewOf*>;

struct Program {
  Views views;
  const WriteTo* write;

  Tensors operator()(const Tensor& x, const Tensor& w) const {
    const Tensor base = x.clone(), seen = base.alias();
    Tensor view = base;
    for (const ViewOf* v : views) view = v->of(view);
    const Tensor before = base * base;
    write->to(view, w);
    return {base * base, seen + 1, view * 2, before};
  }
  std::string text(at::IntArrayRef sizes) const {
    std::ostringstream text;
    text << "of " << sizes << ":";
    for (const ViewOf* v : views) text << " " << v->name;
    text << ", " << write->name;
    return text.str();
  }
};

struct Answer {
  Tensors values;
  bool refused = false;
};

// What is refused is refused by LibTorch or by Tower: both of these have a text.
template <class F>
Answer answer_of(F&& f) {
  try {
    return {f()};
  } catch (const c10::Error&) {
  } catch (const tower::Error&) {
  } catch (const std::out_of_range&) {  // of at(), in this file
  }
  return {{}, true};
}

void compare(const Program& program, at::IntArrayRef sizes, int64_t& refused) {
  const std::string text = program.text(sizes);
  SCOPED_TRACE(text);
  const Tensor x = waves(sizes, 0.2), w = waves({}, 0.7), dx = waves(sizes, 1.4), dw = waves({}, 1.9);
  const Function f = [&](const Tensors& in) { return program(in[0], in[1]); };
  const Answer plain = answer_of([&] { return program(x, w); });
  const auto agrees = [&](const char* transform, const Answer& found) {
    if (found.refused != plain.refused)
      ADD_FAILURE() << transform << (found.refused ? " refuses" : " allows") << " what LibTorch does not";
    return !found.refused && !plain.refused;
  };
  refused += plain.refused;

  std::vector<int64_t> batched{2};
  batched.insert(batched.end(), sizes.begin(), sizes.end());
  const Tensor xs = waves(batched, 0.3), ws = waves({2}, 0.8);
  const Answer mapped = answer_of([&] { return td::vmap(f, {0, 0}, {0})({xs, ws}); });
  if (agrees("vmap", mapped))
    for (int64_t b = 0; b < 2; ++b) {
      const Tensors one = program(xs[b], ws[b]);
      for (size_t k = 0; k < one.size(); ++k) EXPECT_TRUE(same(mapped.values.at(k)[b], one[k])) << "vmap, result " << k;
    }

  const double h = 1e-5;
  Tensors weights;
  for (const Tensor& t : plain.values) weights.push_back(waves(t.sizes(), 0.4 + static_cast<double>(weights.size())));
  const double quotient = plain.refused ? 0
                                        : (support::inner(weights, program(x + h * dx, w + h * dw)) -
                                           support::inner(weights, program(x - h * dx, w - h * dw))) /
                                              (2 * h);
  double reverse = 0;
  const Answer outputs = answer_of([&] {
    const auto [values, pullback] = td::vjp(f, {x, w});
    if (!plain.refused) reverse = support::inner(pullback(weights), {dx, dw});
    return values;
  });
  if (agrees("grad", outputs)) {
    for (size_t k = 0; k < weights.size(); ++k) EXPECT_TRUE(same(outputs.values.at(k), plain.values[k])) << "grad";
    EXPECT_NEAR(reverse, quotient, 1e-7 * (1 + std::abs(quotient))) << "grad";
  }
  const Answer tangents = answer_of([&] { return td::jvp(f, {x, w}, {dx, dw}).second; });
  if (agrees("jvp", tangents)) {
    EXPECT_NEAR(support::inner(weights, tangents.values), quotient, 1e-7 * (1 + std::abs(quotient))) << "jvp";
  }
}

TEST(WritesThroughViewsOfTheSmallestTensors, AreThoseOfTheFunctionItself) {
  int64_t refused = 0, all = 0;
  for (const auto& sizes : kShapes)
    for (const ViewOf& view : kViews)
      for (const WriteTo& write : kWrites) {
        compare({{&view}, &write}, sizes, refused);
        ++all;
      }
  EXPECT_LT(refused, all / 2);  // or little was compared
}

TEST(WritesThroughViewsOfTheSmallestTensors, AreThoseOfTheFunctionItselfThroughTwoViews) {
  int64_t refused = 0, all = 0, pairs = 0;
  for (const auto& sizes : kShapes)
    for (const ViewOf& first : kViews)
      for (const ViewOf& second : kViews) {
        if (std::string_view(second.name).starts_with("as_strided")) continue;  // it reads the base's memory
        if (++pairs % 3 != 0 && !support::whole()) continue;
        compare({{&first, &second}, &kWrites[static_cast<size_t>(all) % std::size(kWrites)]}, sizes, refused);
        ++all;
      }
  EXPECT_LT(refused, all * 2 / 3);
}

}  // namespace
