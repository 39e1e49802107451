// Suppresses a LeakSanitizer report: the names of MXNet's operators are used until the process ends.

extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() { return "leak:gluon_gc::add_operator"; }
