"""Writes reference.csv: where the outer Solar System is after 100 years, by heyoka.

python3 reference.py > reference.csv
"""

import heyoka
import numpy as np
from solar_system import BODIES, GRAVITY, MASSES, start

system = heyoka.model.nbody(BODIES, masses=MASSES, Gconst=GRAVITY)
flight = heyoka.taylor_adaptive(system, np.concatenate(start(), axis=1).ravel(), compact_mode=True)
flight.propagate_until(100.0)

print(f"# heyoka {heyoka.__version__}, taylor_adaptive: position and velocity of each body")
print("x,y,z,vx,vy,vz")
for body in flight.state.reshape(BODIES, 6):
    print(",".join(f"{number:.16e}" for number in body))
