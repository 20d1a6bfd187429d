// mathfn: elementary functions in double whose bits do not depend on the C library: additions, multiplications and
// divisions in a fixed order, without contraction.
#pragma once

namespace mr::cpu {

// e^x, below 2 ulp for results that are normal numbers; 0 below -708, infinity above 709.78.
double exp_f64(double x);

// Natural logarithm, below 2 ulp. 0 gives -infinity, negative numbers NaN; subnormal x is accepted.
double log_f64(double x);

// Sine and cosine of x for |x| <= 2^21 * pi/2 (3.2 million), absolute error below 2^-52.
void sincos_f64(double x, double* sine, double* cosine);

// base^exponent for base > 0.
inline double pow_f64(double base, double exponent) { return exp_f64(exponent * log_f64(base)); }

}  // namespace mr::cpu
