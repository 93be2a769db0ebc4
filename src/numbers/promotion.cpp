#include "numbers/promotion.h"

#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>

namespace tower::compiler {

std::optional<Type> promoted(c10::ArrayRef<IValue> args, c10::ArrayRef<ElementArgument> elements) {
  at::native::ResultTypeState state;
  const auto promote = [](at::ScalarType& to, at::ScalarType dtype) {
    to = to == at::ScalarType::Undefined ? dtype : c10::promoteTypes(to, dtype);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    if (elements[i].id == kNone) {
      if (args[i].isScalar()) state = at::native::update_result_type_state(args[i].toScalar(), state);
      continue;
    }
    const auto& [id, dtype, scalar, number] = elements[i];
    promote(number   ? state.wrappedResult
            : scalar ? state.zeroResult
                     : state.dimResult,
            number && at::isFloatingType(dtype) ? c10::typeMetaToScalarType(c10::get_default_dtype()) : dtype);
  }
  return type_of(at::native::result_type(state));
}

}  // namespace tower::compiler
