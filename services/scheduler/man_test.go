package main

import (
	"io"
	"testing"

	"github.com/millrace/millrace/internal/manpages"
)

func TestManualPages(t *testing.T) { manpages.Check(t, command(io.Discard)) }
