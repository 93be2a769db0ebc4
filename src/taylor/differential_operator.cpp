// A homogeneous operator Σ c_α ∂^α of order K is a polynomial Σ c_α ξ^α, and where that is Σ w_r (v_r · ξ)ᴷ, the
// operator is Σ w_r times the K-th derivative along v_r. Read first: at the end, apply.
#include "tower/differential_operator.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/memory.h"
#include "frontend/substitution.h"
#include "taylor/along.h"
#include "taylor/binomial.h"
#include "taylor/jet.h"
#include "tower/errors.h"

namespace tower {

using dynamic::Function;

namespace {

constexpr char kOperator[] = "differential_operator";

// Up to it the sums of integers below are exact in double.
constexpr size_t kLargestOrder = 12;

/// By element: how many derivatives, or a direction's component.
using Powers = std::map<int64_t, int>;

double factorial(size_t k) { return std::tgamma(static_cast<double>(k) + 1); }

// ---- mixed derivatives by those along directions -------------------------------------------------------------------

/// The direction's components without a common divisor, the first of them positive; what was divided by.
std::pair<Powers, int> primitive(const Powers& direction) {
  int divisor = 0;
  for (const auto& [element, component] : direction) divisor = std::gcd(divisor, component);
  if (direction.begin()->second < 0) divisor = -divisor;
  Powers result = direction;
  for (auto& [element, component] : result) component /= divisor;
  return {std::move(result), divisor};
}

/// The directions v and weights w with ξ^α = Σ w (v · ξ)ᴷ. Kan's identity, K being |α|:
///   2ᴷ K! ξ^α = Σ over ν ≤ α of (-1)^|ν| Π binomial(αᵢ, νᵢ) (Σ (αᵢ - 2νᵢ) ξᵢ)ᴷ
std::map<Powers, double> polarized(const Powers& alpha, size_t order) {
  if (alpha.size() == 1) return {{{{alpha.begin()->first, 1}}, 1.0}};
  std::map<Powers, double> sums;  // of integers
  const auto choose = [&](const auto& self, Powers::const_iterator at, Powers direction, double factor) -> void {
    if (at != alpha.end()) {
      const auto [element, power] = *at;
      taylor::Binomial binomial(static_cast<size_t>(power));
      for (int nu = 0; nu <= power; ++nu, ++binomial) {
        Powers next = direction;
        if (power != 2 * nu) next[element] = power - 2 * nu;
        self(self, std::next(at), std::move(next), (nu % 2 ? -factor : factor) * *binomial);
      }
    } else if (!direction.empty()) {
      const auto [unit, divisor] = primitive(direction);
      sums[unit] += factor * std::pow(divisor, static_cast<double>(order));
    }
  };
  choose(choose, alpha.begin(), {}, 1);
  for (auto& [direction, sum] : sums) sum /= std::ldexp(factorial(order), static_cast<int>(order));
  return sums;
}

// ---- terms ---------------------------------------------------------------------------------------------------------

struct Term {
  Powers powers;
  size_t coefficient;  // among all
};

/// Linear combinations of the coefficients, a row of factors for each.
class Combinations {
 public:
  explicit Combinations(const std::vector<DerivativeTerm>& terms) {
    Tensors tensors;
    for (const DerivativeTerm& t : terms)
      tensors.push_back(t.coefficient.tensor), numbers_.push_back(t.coefficient.number);
    tensors_ = frontend::stand_ins(std::move(tensors));
    for (size_t k = 0; k < tensors_.size(); ++k)
      if (const Tensor& c = tensors_[k];
          c.defined() && (c.dim() != 0 || c.is_complex() || c.scalar_type() == at::kBool))
        throw ArgumentError(std::string(kOperator) + ": the coefficient of " + ordinal("term", k) + " is " +
                            describe(c) + ", but must be a real number without dimensions.");
  }

  /// One term's coefficient times `t`.
  Tensor times(size_t k, const Tensor& t) const {
    return tensors_[k].defined() ? t * tensors_[k].to(t.scalar_type()) : t * numbers_[k];
  }

  /// For each row, which has factors by coefficient, the sum: numbers of the dtype and device of `like`.
  Tensor of(const std::vector<std::map<size_t, double>>& rows, const Tensor& like) const {
    const auto count = static_cast<int64_t>(rows.size());
    std::vector<double> numbers(rows.size());
    std::map<size_t, std::vector<double>> by_tensor;  // factors of those that are tensors
    for (size_t r = 0; r < rows.size(); ++r)
      for (const auto& [k, factor] : rows[r]) {
        if (!tensors_[k].defined()) numbers[r] += factor * numbers_[k];
        else by_tensor.try_emplace(k, rows.size()).first->second[r] += factor;
      }
    const auto as_tensor = [&](const std::vector<double>& values) {
      return at::tensor(values, at::kDouble).to(like.options()).view({count});
    };
    Tensor sum = as_tensor(numbers);
    for (const auto& [k, factors] : by_tensor) sum = sum + as_tensor(factors) * tensors_[k].to(like.scalar_type());
    return sum;
  }

  /// A row's sum, if no tensor is in it.
  std::optional<double> number(const std::map<size_t, double>& row) const {
    double sum = 0;
    for (const auto& [k, factor] : row) {
      if (tensors_[k].defined()) return std::nullopt;
      sum += factor * numbers_[k];
    }
    return sum;
  }

 private:
  Tensors tensors_;
  std::vector<double> numbers_;
};

std::map<size_t, std::vector<Term>> by_order(const std::vector<DerivativeTerm>& terms, int64_t elements) {
  std::map<size_t, std::vector<Term>> result;
  for (size_t k = 0; k < terms.size(); ++k) {
    const std::string what = std::string(kOperator) + ": " + ordinal("term", k);
    if (terms[k].by.size() > kLargestOrder)
      throw ArgumentError(what + " is of order " + std::to_string(terms[k].by.size()) + "; at most " +
                          std::to_string(kLargestOrder) + " is possible. Apply an operator of lower order twice.");
    Term term{{}, k};
    for (const int64_t element : terms[k].by) {
      if (element < 0 || element >= elements)
        throw ArgumentError(what + " is by element " + std::to_string(element) + ", but there are " +
                            std::to_string(elements) + " elements to differentiate by.");
      ++term.powers[element];
    }
    result[terms[k].by.size()].push_back(std::move(term));
  }
  return result;
}

// ---- one order -----------------------------------------------------------------------------------------------------

/// What the operator is applied to.
struct Applied {
  const Function& f;
  const Tensors& primals;
  const std::vector<int64_t>& argnums;
  int64_t elements;
  const Combinations& coefficients;

  const Tensor& first() const { return primals[static_cast<size_t>(argnums[0])]; }
};

taylor::Along exactly(const Applied& to, size_t order, const std::vector<Term>& terms) {
  std::map<Powers, std::map<size_t, double>> weights;
  for (const Term& term : terms)
    for (const auto& [direction, weight] : polarized(term.powers, order))
      weights[direction][term.coefficient] += weight;
  std::vector<std::map<size_t, double>> rows;
  std::vector<double> components;
  bool ones = true;
  for (const auto& [direction, weight] : weights) {
    const auto number = to.coefficients.number(weight);
    if (number == 0) continue;
    ones = ones && number == 1;
    rows.push_back(weight);
    components.resize(components.size() + static_cast<size_t>(to.elements));
    double* row = components.data() + components.size() - to.elements;
    for (const auto& [element, component] : direction) row[element] = component;
  }
  const auto count = static_cast<int64_t>(rows.size());
  const Tensor directions = at::tensor(components, at::kDouble).view({count, to.elements});
  taylor::Along along{order, taylor::as_directions(directions, to.primals, to.argnums)};
  if (!ones) along.weights = to.coefficients.of(rows, to.first());
  return along;
}

/// E[Π He(vᵢ) (v · ξ)ᴷ] = K! ξ^α of standard normal v, He being of degree αᵢ.
taylor::Along by_normal_directions(const Applied& to, size_t order, const std::vector<Term>& terms,
                                   const Tensors& directions) {
  const int64_t count = directions[0].size(0);
  Tensors flat;
  for (const Tensor& d : directions) flat.push_back(d.reshape({count, d.numel() / count}).to(to.first().options()));
  const Tensor all = at::cat(flat, 1);
  const auto hermite = [&](int64_t element, int degree) {
    const Tensor v = all.select(1, element);
    Tensor before = at::ones_like(v), now = v;
    for (int k = 1; k < degree; ++k) before = std::exchange(now, v * now - k * before);
    return now;
  };
  Tensor weights;
  for (const Term& term : terms) {
    Tensor product = at::full_like(all.select(1, 0), 1 / (factorial(order) * static_cast<double>(count)));
    for (const auto& [element, power] : term.powers) product = product * hermite(element, power);
    product = to.coefficients.times(term.coefficient, product);
    weights = weights.defined() ? weights + product : product;
  }
  return {order, directions, weights};
}

// The direction whose first derivative is the sum of the terms of order one.
Tensors drift_of(const Applied& to, const std::vector<Term>& terms) {
  std::vector<std::map<size_t, double>> rows(static_cast<size_t>(to.elements));
  for (const Term& term : terms) rows[static_cast<size_t>(term.powers.begin()->first)][term.coefficient] += 1;
  const Tensor row = to.coefficients.of(rows, to.first()).unsqueeze(0);
  Tensors drift = taylor::as_directions(row, to.primals, to.argnums);
  for (Tensor& d : drift) d = d.squeeze(0);
  return drift;
}

// ---- all orders ----------------------------------------------------------------------------------------------------

struct Sums {
  Tensors outs, sums;

  void add(std::pair<Tensors, Tensors> part) {
    outs = std::move(part.first);
    if (sums.empty()) sums = std::move(part.second);
    else
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = at::add(sums[i], part.second[i]);
  }
};

Tensors apply(const Function& f, const std::vector<int64_t>& given_argnums, const std::vector<DerivativeTerm>& terms,
              const DifferentialOptions& options, const Tensors& given) {
  const memory::InTransform here;
  const Tensors primals = frontend::stand_ins(given);
  const auto argnums = taylor::check_real_arguments(primals, given_argnums, kOperator);
  taylor::check_chunk_size(options.chunk_size, kOperator);
  Tensors normal;
  if (!options.normal_directions.empty()) {
    normal = taylor::check_directions(options.normal_directions, primals, argnums, kOperator);
    if (normal[0].size(0) == 0)
      throw ArgumentError(std::string(kOperator) + ": there is no direction to estimate by. Give at least one.");
  }
  int64_t elements = 0;
  for (const int64_t a : argnums) elements += primals[static_cast<size_t>(a)].numel();
  const Combinations coefficients(terms);
  auto orders = by_order(terms, elements);
  const Applied to{f, primals, argnums, elements, coefficients};

  Tensors drift = orders.contains(1) ? drift_of(to, orders[1]) : Tensors();
  Sums sums;
  for (auto it = orders.rbegin(); it != orders.rend() && it->first >= 2; ++it) {
    taylor::Along along =
        normal.empty() ? exactly(to, it->first, it->second) : by_normal_directions(to, it->first, it->second, normal);
    if (along.directions[0].size(0) == 0) continue;
    // Terms of order one enter as the sums do, and cost nothing where there are some.
    along.drift = std::exchange(drift, {});
    along.chunk_size = options.chunk_size;
    sums.add(taylor::sum_along(f, primals, argnums, along, kOperator));
  }
  if (sums.outs.empty() || !drift.empty()) {
    std::vector<taylor::Derivatives> derivatives(primals.size());
    for (size_t k = 0; k < drift.size(); ++k) derivatives[static_cast<size_t>(argnums[k])] = {drift[k]};
    const auto followed = taylor::follow(c10::make_intrusive<taylor::Jet>(kOperator, 1), f, primals, derivatives);
    sums.add({followed.outs, followed.of_order(1)});
  }
  if (orders.contains(0))
    for (size_t i = 0; i < sums.outs.size(); ++i) {
      const Tensor& out = sums.outs[i];
      if (!out.is_floating_point() && !out.is_complex())
        throw ArgumentError(std::string(kOperator) + ": " + ordinal("output", i) + " is " + describe(out) +
                            ", which a term without derivatives does not multiply. Return floating point numbers.");
      for (const Term& term : orders[0]) sums.sums[i] = sums.sums[i] + coefficients.times(term.coefficient, out);
    }
  return std::move(sums.sums);
}

// ---- estimates -----------------------------------------------------------------------------------------------------

/// The results of `f`, and of each `factor` times the mean of the derivatives of that order along `directions`.
std::pair<Tensors, Tensors> estimate(const Function& f, const std::vector<int64_t>& given_argnums,
                                     const Tensors& directions, std::optional<int64_t> chunk_size, size_t order,
                                     double factor, const char* label, const Tensors& given) {
  const memory::InTransform here;
  const Tensors primals = frontend::stand_ins(given);
  const auto argnums = taylor::check_real_arguments(primals, given_argnums, label);
  taylor::check_chunk_size(chunk_size, label);
  taylor::Along along{order, taylor::check_directions(directions, primals, argnums, label)};
  const auto count = static_cast<double>(along.directions[0].size(0));
  if (count == 0)
    throw ArgumentError(std::string(label) + ": there is no direction to estimate by. Give at least one.");
  for (Tensor& d : along.directions) d = d * std::pow(factor / count, 1 / static_cast<double>(order));
  along.chunk_size = chunk_size;
  return taylor::sum_along(f, primals, argnums, along, label);
}

}  // namespace

namespace dynamic {

Function differential_operator(Function f, std::vector<int64_t> argnums, std::vector<DerivativeTerm> terms,
                               DifferentialOptions options) {
  return [f = std::move(f), argnums = std::move(argnums), terms = std::move(terms),
          options = std::move(options)](const Tensors& args) { return apply(f, argnums, terms, options, args); };
}

FunctionWithAux stochastic_laplacian(Function f, std::vector<int64_t> argnums, Tensors directions,
                                     std::optional<int64_t> chunk_size) {
  return [f = std::move(f), argnums = std::move(argnums), directions = std::move(directions),
          chunk_size](const Tensors& args) {
    return estimate(f, argnums, directions, chunk_size, 2, 1, "stochastic_laplacian", args);
  };
}

Function stochastic_biharmonic(Function f, std::vector<int64_t> argnums, Tensors directions,
                               std::optional<int64_t> chunk_size) {
  return [f = std::move(f), argnums = std::move(argnums), directions = std::move(directions),
          chunk_size](const Tensors& args) {
    return estimate(f, argnums, directions, chunk_size, 4, 1.0 / 3, "stochastic_biharmonic", args).second;
  };
}

}  // namespace dynamic
}  // namespace tower
