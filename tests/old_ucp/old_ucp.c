/* A libucp that reports a version that is too old. */
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);

__attribute__((visibility("default"))) void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release) {
    *major = 1;
    *minor = 14;
    *release = 1;
}
