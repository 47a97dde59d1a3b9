// Entered by ctypes in the place of the driver's launches.
extern "C" int launch_on_cpu(const char *name, int grid, int block, int shared, void **args, int lazy) {
    LAZY = lazy;
    if (!strcmp(name, "rollout_forward")) return launch(rollout_forward, grid, block, shared, args), 0;
    if (!strcmp(name, "rollout_backward")) return launch(rollout_backward, grid, block, shared, args), 0;
    if (!strcmp(name, "pack_filters")) return launch(pack_filters, grid, block, shared, args), 0;
    return 1;
}
