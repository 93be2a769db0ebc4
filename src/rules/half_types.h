// What operators round where they compute in float16 and bfloat16: NOTE [Rounding to half types] in numbers/element.h.
#pragma once

namespace tower::rules {

/// Says it of operators all over the database; when all of them have their records. Others have no kernels in these
/// types.
void half_types();

}  // namespace tower::rules
