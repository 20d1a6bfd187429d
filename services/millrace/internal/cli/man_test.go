package cli

import (
	"testing"

	"github.com/millrace/millrace/internal/manpages"
	"github.com/millrace/millrace/services/millrace/internal/config"
)

func TestTheManualPagesAreCurrent(t *testing.T) {
	a := &app{System: &System{Config: config.Config{Target: config.DefaultTarget}}}
	manpages.Compare(t, a.root())
}
