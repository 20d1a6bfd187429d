package native

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestAnEngineWithoutVectorsSaysSoByName(t *testing.T) {
	for name, source := range map[string]string{
		"no table":     gpuEngine,
		"an older abi": strings.Replace(gpuEngine, "sizeof(mr_api)", "offsetof(mr_api, vectors)", 1),
		"a short table": "#include \"millrace/vectors.h\"\nstatic const mr_vector_api some = {.struct_size = 16};\n" +
			strings.Replace(gpuEngine, ".device_count", ".vectors = &some, .device_count", 1),
	} {
		t.Run(name, func(t *testing.T) {
			lib := buildLibrary(t, t.TempDir(), "#include <stddef.h>\n"+source)
			dev, err := Open(Options{Device: "cuda:1", EnginePath: lib, AnyBuild: true}, hclog.NewNullLogger())
			require.NoError(t, err, "such an engine still runs models")
			vectors := dev.(engine.Vectors)
			cfg := engine.TrainerConfig{Codebook: engine.CodebookDesc{Dimension: 1, Codewords: 1, Subspaces: 1}, Rows: 1}
			_, err = vectors.TrainerCost(cfg)
			require.ErrorIs(t, err, engine.ErrUnsupported)
			require.ErrorContains(t, err, lib)
			_, err = vectors.NewTrainer(cfg)
			require.ErrorIs(t, err, engine.ErrUnsupported)
			_, err = vectors.NewCodebook(cfg.Codebook, make([]byte, 4))
			require.ErrorIs(t, err, engine.ErrUnsupported)
			require.NoError(t, dev.Close())
		})
	}
}
