package main

import (
	"fmt"
	"os"
)

func main() {
	// Not buffered, so that a line of a package shows when the package has ended.
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}
