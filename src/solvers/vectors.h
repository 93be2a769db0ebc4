// Lists of tensors as one vector, which is what linear algebra knows.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>

#include "control/speech.h"
#include "core/operator.h"
#include "tower/dynamic.h"

namespace tower::solvers {

using VectorFunction = std::function<Tensor(const Tensor&)>;

/// What the unknowns of a linear system look like: tensors of one floating point dtype.
class Unknowns {
 public:
  /// Throws ArgumentError where `like` is not that. `name`: of the operator, for messages.
  Unknowns(std::string name, const dynamic::Tensors& like);

  int64_t size() const { return size_; }
  at::TensorOptions options() const { return metas_[0].options(); }
  const std::string& name() const { return name_; }

  /// Throws ArgumentError where `list`, which is what `whose` gave, is not like the unknowns.
  void check(const dynamic::Tensors& list, const char* whose) const;

  Tensor vector(const dynamic::Tensors& list, const char* whose) const;
  /// The same in memory of its own.
  Tensor own_vector(const dynamic::Tensors& list, const char* whose) const;
  dynamic::Tensors list(const Tensor& vector) const;
  /// `f`, which is `whose`, as a function of vectors.
  VectorFunction on_vectors(dynamic::Function f, const char* whose) const;

 private:
  std::string name_;
  std::vector<Meta> metas_;
  int64_t size_ = 0;
};

/// The named axes along which `f`, a linear function of vectors like `like`, mixes those of several examples.
speech::Axes mixed_axes(const VectorFunction& f, const Tensor& like);

/// Whether no number of `t` is nan or infinite: a bool.
inline Tensor all_finite(const Tensor& t) { return (t - t == 0).all(); }

/// The distance from 1 to the next number of a dtype, real or complex; that of float for narrower ones, too.
inline double epsilon_of(at::ScalarType dtype) {
  const bool wide = c10::toRealValueType(dtype) == at::kDouble;
  return wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

/// Whether a condition, one bool, holds for any example of any vmap.
bool any_example(const Tensor& condition);

}  // namespace tower::solvers
