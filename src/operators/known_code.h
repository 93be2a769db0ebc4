// Operators that are made of functions which have been traced: their code is data, and passes over graphs can look into
// it. To all others they are higher-order operators as any (tower/higher_order.h).
#pragma once

#include "core/operator.h"
#include "tower/higher_order.h"

namespace tower {

namespace compiler {
struct Call;
class GraphWriter;
}  // namespace compiler

/// What an operator does, as data.
struct KnownCode {
  virtual ~KnownCode() = default;
  /// What is in it draws random numbers, or is itself code that is not known.
  bool random = false, foreign = false;
  /// It raises for some values that it finds, or must end and may not have.
  bool raises = false;
  /// Whether `other` is the same code, such as that of a function that was traced twice.
  virtual bool does_the_same(const KnownCode& other) const { return this == &other; }
  /// Whether a call of this, whose first operands are those of a call of `other`, raises whatever that one would.
  virtual bool raises_for(const KnownCode&) const { return false; }
  /// What a tensor is for one example.
  struct Kind {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    bool operator==(const Kind&) const = default;
  };
  struct Kinds {
    std::vector<Kind> operands, results;
  };
  /// Of a call; none where only running the code tells.
  virtual std::optional<Kinds> kinds() const { return std::nullopt; }
  /// What a call gives of tensors that nobody records, where that is found faster than by running the code.
  virtual std::optional<dynamic::Tensors> run_at_once(const compiler::Call&, const dynamic::Tensors&) const {
    return std::nullopt;
  }
  /// Writes it for a file; false where no file can have it.
  virtual bool store(compiler::GraphWriter&) const { return false; }
};

/// The operator of these rules, which do what `code` says.
c10::intrusive_ptr<const Operator> known_operator(HigherOrderRules rules, std::shared_ptr<const KnownCode> code);
/// Calls such a one.
dynamic::Tensors call_known(HigherOrderRules rules, std::shared_ptr<const KnownCode> code,
                            const dynamic::Tensors& operands);

/// Whether code of a call, with these arguments, may read tensors for which others stand: NOTE [Substituted in graphs].
bool may_read_substituted(const Operator& op, c10::ArrayRef<c10::IValue> args);

/// Null where an operator was not called like that.
const KnownCode* known_code(const Operator& op);
/// Whether they are one operator, or have the same known code.
bool do_the_same(const Operator& a, const Operator& b);

}  // namespace tower
