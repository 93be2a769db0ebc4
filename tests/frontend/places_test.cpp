// Where views lie in memory: inside of a transform they show the strides and the offset that they have in the plain
// call, and as_strided reads what it reads there. Random chains of views, by the plain call of an example that is alone
// in memory.
#include <random>

#include "support/prelude.h"
#include "support/seeds.h"
#include "tower/compile.h"

namespace {

using Ints = std::vector<int64_t>;

struct Place {
  Ints sizes, strides;
  int64_t offset;
  bool operator==(const Place&) const = default;
};
// Along a dimension of one element nothing lies.
Place place_of(const Tensor& t) {
  Place place{t.sizes().vec(), t.strides().vec(), t.storage_offset()};
  for (size_t d = 0; d < place.sizes.size(); ++d)
    if (place.sizes[d] == 1) place.strides[d] = 0;
  return place;
}

std::ostream& operator<<(std::ostream& out, const Place& p) {
  return out << "sizes " << at::IntArrayRef(p.sizes) << ", strides " << at::IntArrayRef(p.strides) << ", offset "
             << p.offset;
}

using Step = std::function<Tensor(const Tensor&)>;
struct Program {
  std::string text;
  std::vector<Step> steps;  // from the argument, each a view of what the one before gave
  bool writes = false;      // to where the chain began, after it was made

  void add(const std::string& what, Step step) {
    text += what;
    steps.push_back(std::move(step));
  }
  /// The last of the chain. `see`: every tensor of it.
  Tensor operator()(const Tensor& x, const std::function<void(const Tensor&)>& see = {}) const {
    std::vector<Tensor> chain{x};
    for (const Step& step : steps) chain.push_back(step(chain.back()));
    if (writes) chain[1].mul_(3);
    for (size_t k = 1; see && k < chain.size(); ++k) see(chain[k]);
    return chain.back() * 1;
  }
};

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, std::max<int64_t>(n, 1) - 1)(random_); }

  void view(Program& p, const Tensor& t) {
    const int64_t d = below(t.dim()), e = below(t.dim()), size = t.dim() ? t.size(d) : 1, at = below(size);
    const std::string dim = std::to_string(d), index = std::to_string(at), other = std::to_string(e);
    switch (below(t.dim() == 0 ? 2 : 13)) {
      case 0:
        return p.add(".unsqueeze(0)", [](const Tensor& x) { return x.unsqueeze(0); });
      case 1:
        return p.add(".view(-1)", [](const Tensor& x) { return x.view({-1}); });
      case 2:
        return p.add(".select(" + dim + ", " + index + ")", [=](const Tensor& x) { return x.select(d, at); });
      case 3: {
        const int64_t step = 1 + below(3);
        return p.add(".slice(" + dim + ", " + index + ", {}, " + std::to_string(step) + ")",
                     [=](const Tensor& x) { return x.slice(d, at, std::nullopt, step); });
      }
      case 4:
        return p.add(".narrow(" + dim + ", " + index + ", 1)", [=](const Tensor& x) { return x.narrow(d, at, 1); });
      case 5:
        return p.add(".transpose(" + dim + ", " + other + ")", [=](const Tensor& x) { return x.transpose(d, e); });
      case 6: {
        const int64_t offset = below(2);
        if (t.dim() < 2) return view(p, t);
        return p.add(".diagonal(" + std::to_string(offset) + ")", [=](const Tensor& x) { return x.diagonal(offset); });
      }
      case 7:
        return p.add(".unfold(" + dim + ", 1, 2)", [=](const Tensor& x) { return x.unfold(d, 1, 2); });
      case 8:
        return p.add(".split(1, " + dim + ").back()", [=](const Tensor& x) { return x.split(1, d).back(); });
      case 9:
        return p.add(".unbind(" + dim + ").back()", [=](const Tensor& x) { return x.unbind(d).back(); });
      case 10:
        return p.add(".squeeze()", [](const Tensor& x) { return x.squeeze(); });
      case 11:
        return p.add(".chunk(2, " + dim + ").back()", [=](const Tensor& x) { return x.chunk(2, d).back(); });
      default:
        return p.add(".movedim(" + dim + ", 0)", [=](const Tensor& x) { return x.movedim(d, 0); });
    }
  }

  void as_strided(Program& p) {
    Ints sizes, strides;
    for (int64_t d = below(3); d > 0; --d) {
      sizes.push_back(1 + below(3));
      strides.push_back(below(5));
    }
    const auto offset = below(3) == 0 ? std::nullopt : std::optional(below(8));
    std::ostringstream text;
    text << (below(4) == 0 ? ".as_strided_(" : ".as_strided(") << at::IntArrayRef(sizes) << ", "
         << at::IntArrayRef(strides) << ", " << (offset ? std::to_string(*offset) : "{}") << ")";
    const bool in_place = text.str().find("as_strided_") != std::string::npos;
    // In place of a tensor that nothing else shows: the argument's own handle stays as it is.
    if (in_place)
      p.add(".alias()" + text.str(), [=](const Tensor& x) { return x.alias().as_strided_(sizes, strides, offset); });
    else p.add(text.str(), [=](const Tensor& x) { return x.as_strided(sizes, strides, offset); });
  }

  /// A program that LibTorch runs for a [3, 4] tensor.
  Program program() {
    for (;;) {
      Program p;
      if (below(2)) p.add("(x * 1)", [](const Tensor& x) { return x * 1; });
      else if (below(2)) p.add("(x.t() * 1)", [](const Tensor& x) { return x.t() * 1; });
      else p.add("x.alias()", [](const Tensor& x) { return x.alias(); });
      p.writes = p.text[0] == '(' && below(3) == 0;
      try {
        for (int64_t k = 1 + below(3); k > 0; --k) {
          Tensor t = numbers({3, 4});
          for (const Step& step : p.steps) t = step(t);
          view(p, t);
        }
        if (below(3)) as_strided(p);
        if (below(3) == 0) as_strided(p);
        p(numbers({3, 4}));
        if (p.writes) p.text += ", written";
        return p;
      } catch (const c10::Error&) {
      }
    }
  }

 private:
  std::mt19937 random_;
};

support::Seeds programs() { return support::seeds("TOWER_PLACES_PROGRAMS", 150); }

std::vector<Place> places_in(const Program& p, const Tensor& x) {
  std::vector<Place> found;
  p(x, [&](const Tensor& t) { found.push_back(place_of(t)); });
  return found;
}

// Transforms around a program: vmaps along these dimensions (the last is the innermost), a derivative among them.
struct Nesting {
  const char* name;
  Ints outside;
  enum { none, forward, reverse } derivative;
  Ints inside;
};
const Nesting kNestings[] = {
    {"vmap, 0", {0}, Nesting::none, {}},
    {"vmap, 1", {1}, Nesting::none, {}},
    {"vmap, 2", {2}, Nesting::none, {}},
    {"vmap, 0, of vmap, 0", {0, 0}, Nesting::none, {}},
    {"vmap, 2, of vmap, 1", {2, 1}, Nesting::none, {}},
    {"jvp", {}, Nesting::forward, {}},
    {"vjp", {}, Nesting::reverse, {}},
    {"vmap, 1, of jvp", {1}, Nesting::forward, {}},
    {"vmap, 0, of vjp", {0}, Nesting::reverse, {}},
    {"jvp of vmap, 0", {}, Nesting::forward, {0}},
    {"vjp of vmap, 2", {}, Nesting::reverse, {2}},
    {"vmap, 1, of vjp of vmap, 1", {1}, Nesting::reverse, {1}},
};

Function mapped_along(Function f, const Ints& dims, size_t arguments) {
  for (size_t k = dims.size(); k-- > 0;) f = td::vmap(f, Dims(arguments, dims[k]), {0});
  return f;
}

// Of values and a direction: the values, and the derivative along the direction. What a program does is linear: without
// a derivative, it is the program of the direction.
Function under(const Nesting& nesting, const Function& f) {
  const Function inner = mapped_along(f, nesting.inside, 1);
  const Function both = [inner, kind = nesting.derivative](const Tensors& in) -> Tensors {
    if (kind == Nesting::none) return {inner({in[0]})[0], inner({in[1]})[0]};
    if (kind == Nesting::forward) {
      const auto [y, dy] = td::jvp(inner, {in[0]}, {in[1]});
      return {y[0], dy[0]};
    }
    // The transposed of the pullback, which is linear.
    const auto [y, pullback] = td::vjp(inner, {in[0]});
    return {y[0], td::vjp(pullback, {at::zeros_like(y[0])}).second({in[1]})[0]};
  };
  return mapped_along(both, nesting.outside, 2);
}

// Examples along the first dimensions, moved to where the nesting has them, and there in memory.
Tensor laid_out(const Nesting& nesting, Tensor x) {
  Ints dims = nesting.outside;
  dims.insert(dims.end(), nesting.inside.begin(), nesting.inside.end());
  for (size_t k = dims.size(); k-- > 0;) {
    const auto at = static_cast<int64_t>(k);
    x = x.movedim(at, at + dims[k]);
  }
  return x.contiguous();
}

Tensor looped_over(const Program& p, const Tensor& x) {
  if (x.dim() == 2) return p(x.clone());
  Tensors all;
  for (int64_t b = 0; b < x.size(0); ++b) all.push_back(looped_over(p, x[b]));
  return at::stack(all);
}

Ints sizes_for(const Nesting& nesting) {
  Ints sizes(nesting.outside.size() + nesting.inside.size(), 2);
  sizes.insert(sizes.end(), {3, 4});
  return sizes;
}

TEST(PlacesOfViews, AreThoseOfThePlainCall) {
  for (const uint64_t seed : programs()) {
    if (HasFailure()) break;
    const Program p = Draw(static_cast<uint32_t>(seed)).program();
    const auto shown = places_in(p, numbers({3, 4}));
    for (const Nesting& nesting : kNestings) {
      SCOPED_TRACE(std::to_string(seed) + ": " + p.text + " under " + nesting.name);
      const auto f = of_one([&](const Tensor& example) {
        size_t k = 0;
        return p(example, [&](const Tensor& view) {
          EXPECT_EQ(place_of(view), shown[k]) << "tensor " << k + 1;
          ++k;
        });
      });
      const Tensor x = waves(sizes_for(nesting)), t = waves(sizes_for(nesting), 0.7);
      const Tensors found = under(nesting, f)({laid_out(nesting, x), laid_out(nesting, t)});
      EXPECT_TRUE(same(found[0], looped_over(p, x)));
      EXPECT_TRUE(same(found[1], looped_over(p, t)));
    }
  }
}

// A graph's tensors lie as the caller's: what is asked for while it is traced is of no account.
TEST(PlacesOfViews, AreReadByCompiledFunctionsAsByThePlainCall) {
  int64_t refused = 0;
  for (const uint64_t seed : programs().part(0, 5)) {
    if (HasFailure()) break;
    const Program p = Draw(static_cast<uint32_t>(seed)).program();
    for (const Nesting& nesting :
         {Nesting{"nothing", {}, Nesting::none, {}}, kNestings[1], kNestings[5], kNestings[8]}) {
      SCOPED_TRACE(std::to_string(seed) + ": " + p.text + ", compiled " + nesting.name);
      const Function compiled = td::compile(under(nesting, of_one([&](const Tensor& x) { return p(x); })));
      for (double phase : {0.2, 1.1}) {
        const Tensor x = waves(sizes_for(nesting), phase), t = waves(sizes_for(nesting), phase + 0.5);
        Tensors found;
        try {
          found = compiled({laid_out(nesting, x), laid_out(nesting, t)});
        } catch (const tower::UnsupportedError& error) {
          // Where an argument's memory starts is another matter in each call.
          EXPECT_TRUE(p.text.starts_with("x.alias()") && p.text.find(", {})") != std::string::npos) << error.what();
          ++refused;
          break;
        }
        EXPECT_TRUE(same(found[0], looped_over(p, x)));
        EXPECT_TRUE(same(found[1], looped_over(p, t)));
      }
    }
  }
  EXPECT_LE(refused, static_cast<int64_t>(programs().count / 50));
}

// What a vmap computes lies as its examples do, and a view of it may need a copy where the plain call's does not.
TEST(PlacesOfViews, AreTheirOwnWhereTheShapeNeedsACopy) {
  const auto f = of_one([](const Tensor& x) { return x.unsqueeze(0).expand({2, 2}).clone().view({-1}); });
  const Tensor x = waves({2, 3, 2});
  Tensors rows;
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 2; ++j) rows.push_back(x.select(1, i).select(1, j).repeat({2}));
  EXPECT_TRUE(same(td::vmap(td::vmap(f, {1}, {0}), {1}, {0})({x})[0], at::stack(rows).view({3, 2, 4})));
}

}  // namespace
