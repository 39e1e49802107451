// What LeakSanitizer finds when a harness ends, and must be there until then: the names of MXNet's operators.

extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() { return "leak:gluon_gc::add_operator"; }
