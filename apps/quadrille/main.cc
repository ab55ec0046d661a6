// The program's entry: one subcommand a file (commands.h).
int main() { return 0; }
