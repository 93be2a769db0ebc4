// What factorizations of small matrices come to in numbers, for the operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults lu_factor(const compiler::SmallCall& c);
compiler::SmallResults lu(const compiler::SmallCall& c);
compiler::SmallResults lu_unpack(const compiler::SmallCall& c);
compiler::SmallResults determinant(const compiler::SmallCall& c);
compiler::SmallResults log_determinant(const compiler::SmallCall& c);

compiler::SmallResults qr(const compiler::SmallCall& c);
compiler::SmallResults geqrf(const compiler::SmallCall& c);
compiler::SmallResults householder_product(const compiler::SmallCall& c);
compiler::SmallResults ormqr(const compiler::SmallCall& c);

}  // namespace tower::rules::small
