// What the device's autocast casts.
#pragma once

namespace apart {

void register_casts();

}  // namespace apart
