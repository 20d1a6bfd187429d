// unwatched: what an engine that was compiled to be watched does at each edge in a program that does not watch: nothing. The
// sanitizers' library has the rest of the callbacks.
extern "C" {

void __sanitizer_cov_trace_pc() {}
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}

}  // extern "C"
