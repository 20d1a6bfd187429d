package model

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/internal/cputest"
)

// splitSmall writes the model "small" of a models directory as a split model of three parts: one
// without tensors, one of four, and the rest.
func splitSmall(t *testing.T, dir, name string) []string {
	t.Helper()
	return modeltest.Split(t, filepath.Join(dir, "small"+extension), dir, name, 0, 4)
}

func entriesOf(m *Manager) map[string]Entry {
	all := map[string]Entry{}
	for _, e := range m.Files() {
		all[e.Name] = e
	}
	return all
}

func TestSplitModelIsOneModel(t *testing.T) {
	// A split model is listed once, and has the digest and the tokens of the whole file.
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path(), Threads: 2}, hclog.NewNullLogger())
	require.NoError(t, err)
	for name, m := range map[string]*Manager{"CPU": managerOf(t, device), "staged": staging(t, enginetest.Hooks{}, nil).Manager} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.Mkdir(filepath.Join(m.cfg.Dir, "large"), 0o755))
			size := uint64(0)
			for _, path := range splitSmall(t, m.cfg.Dir, "parts") {
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.NoError(t, os.Rename(path, filepath.Join(m.cfg.Dir, "large", filepath.Base(path))))
				size += uint64(info.Size())
			}
			got := entriesOf(m)
			require.NoError(t, got["large/parts"].Problem)
			require.Equal(t, size, got["large/parts"].Bytes)
			require.Equal(t, got["small"].Facts, got["large/parts"].Facts)
			require.Len(t, m.Files(), len(got), "no part is listed")
			require.NoError(t, m.catalog.problem("large/parts"))

			tokens := map[string][]string{}
			var digests []engine.Digest
			for _, name := range []string{"small", "large/parts", "family/other"} {
				inst, _, err := m.Load(t.Context(), name, Options{}, nil)
				require.NoError(t, err)
				require.NoError(t, m.Verify(t.Context(), name))
				tokens[name], digests = greedy(t, inst), append(digests, inst.Digest)
			}
			require.Equal(t, digests[0], digests[1])
			require.NotEqual(t, digests[0], digests[2])
			require.Equal(t, tokens["small"], tokens["large/parts"])
			if name == "CPU" { // the other device computes nothing
				require.NotEqual(t, tokens["small"], tokens["family/other"], "tokens depend on the weights")
			}
		})
	}
}

func TestLoadOfPartNamesTheModel(t *testing.T) {
	m, _ := manager(t, 1<<30)
	splitSmall(t, m.cfg.Dir, "parts")
	for _, name := range []string{"parts-00001-of-00003", "parts-00003-of-00003"} {
		_, _, err := m.Load(t.Context(), name, Options{}, nil)
		require.ErrorIs(t, err, ErrNotFound)
		require.ErrorContains(t, err, `of the 3 files of one model, which is called "parts": use that name`)
		require.ErrorIs(t, m.catalog.problem(name), ErrNotFound)
	}
	_, _, err := m.Load(t.Context(), "parts-00001-of-00002", Options{}, nil)
	require.ErrorContains(t, err, `there is no file "parts-00001-of-00002.gguf"`)
}

func TestIncompleteSplitModelsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, paths []string)
		want   string
	}{
		"a part is missing": {func(t *testing.T, paths []string) {
			t.Helper()
			require.NoError(t, os.Remove(paths[1]))
		}, `model "parts" is split into 3 files and 1 of them are missing: put parts-00002-of-00003.gguf into the same folder`},
		"the first part is missing": {func(t *testing.T, paths []string) {
			t.Helper()
			require.NoError(t, os.Remove(paths[0]))
		}, `put parts-00001-of-00003.gguf into the same folder`},
		"a part is in another folder": {func(t *testing.T, paths []string) {
			t.Helper()
			require.NoError(t, os.Rename(paths[2], filepath.Join(filepath.Dir(paths[2]), "family", filepath.Base(paths[2]))))
		}, "put parts-00003-of-00003.gguf into the same folder"},
		"a part is a link that leads out": {func(t *testing.T, paths []string) {
			t.Helper()
			outside := filepath.Join(t.TempDir(), "x")
			require.NoError(t, os.Rename(paths[1], outside))
			require.NoError(t, os.Symlink(outside, paths[1]))
		}, `part 2 of 3 of model "parts": no such model: "parts-00002-of-00003"; the file is a symbolic link that leads out of the models directory`},
		"a part is a link to nothing": {func(t *testing.T, paths []string) {
			t.Helper()
			require.NoError(t, os.Remove(paths[2]))
			require.NoError(t, os.Symlink("nothing", paths[2]))
		}, `part 3 of 3 of model "parts": no such model: "parts-00003-of-00003"; the file is a symbolic link to nothing`},
		"two parts were exchanged": {func(t *testing.T, paths []string) {
			t.Helper()
			require.NoError(t, os.Rename(paths[1], paths[1]+"x"))
			require.NoError(t, os.Rename(paths[2], paths[1]))
			require.NoError(t, os.Rename(paths[1]+"x", paths[2]))
		}, `part 2 of 3, file "parts-00002-of-00003.gguf": not a valid gguf file: metadata split.no is 2 and the file's name says 1`},
		"a part is cut short": {func(t *testing.T, paths []string) {
			t.Helper()
			require.NoError(t, os.Truncate(paths[2], 2000))
		}, `part 3 of 3, file "parts-00003-of-00003.gguf": not a valid gguf file`},
		"two divisions": {func(t *testing.T, paths []string) {
			t.Helper()
			modeltest.Split(t, filepath.Join(filepath.Dir(paths[0]), "small.gguf"), filepath.Dir(paths[0]), "parts", 3)
		}, `model "parts": the folder has parts of a division into 2 files and of one into 3: remove all but one`},
		"a thousand and one parts": {func(t *testing.T, paths []string) {
			t.Helper()
			for _, path := range paths {
				require.NoError(t, os.Remove(path))
			}
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(paths[0]), "parts-00001-of-01001.gguf"), []byte("x"), 0o600))
		}, `model "parts": unsupported gguf file: the model is split into 1001 files, want at most 1000: merge them`},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := manager(t, 1<<30)
			tc.change(t, splitSmall(t, m.cfg.Dir, "parts"))
			e := entriesOf(m)["parts"]
			require.ErrorContains(t, e.Problem, tc.want)
			require.NotContains(t, e.Problem.Error(), m.cfg.Dir)
			_, _, err := m.Load(t.Context(), "parts", Options{}, nil)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, m.catalog.problem("parts"), tc.want)
		})
	}
}

func TestWholeFilePrecedesPartsOfItsName(t *testing.T) {
	m, _ := manager(t, 1<<30)
	splitSmall(t, m.cfg.Dir, "small")
	got := entriesOf(m)
	require.NoError(t, got["small"].Problem)
	require.ErrorIs(t, got["small-00001-of-00003"].Problem, gguf.ErrFormat)
	require.ErrorContains(t, got["small-00001-of-00003"].Problem, `the file "small.gguf" has the name of this split model: remove or rename`)
	_, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
}

func TestChangedPartIsReadAgain(t *testing.T) {
	c := newCatalog(folder(t), simulated(t))
	paths := splitSmall(t, c.dir, "parts")
	find := func() Entry {
		for _, e := range c.list() {
			if e.Name == "parts" {
				return e
			}
		}
		return Entry{}
	}
	require.NoError(t, find().Problem)
	whole, err := os.ReadFile(paths[2])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(paths[2], whole[:len(whole)-100], 0o600))
	first := find()
	require.ErrorContains(t, first.Problem, "part 3 of 3")
	require.Same(t, first.Problem, find().Problem, "an unchanged set is not read again")
	require.NoError(t, os.WriteFile(paths[2], whole, 0o600))
	require.NoError(t, find().Problem)
}

func TestFolderOfPartsNamesTheModel(t *testing.T) {
	m, _ := manager(t, 1<<30)
	splitSmall(t, m.cfg.Dir, "x")
	require.NoError(t, os.Mkdir(filepath.Join(m.cfg.Dir, "huge"), 0o755))
	for i := 1; i <= 3; i++ {
		file := gguf.PartName("x", i, 3)
		require.NoError(t, os.Rename(filepath.Join(m.cfg.Dir, file), filepath.Join(m.cfg.Dir, "huge", file)))
	}
	_, _, err := m.Load(t.Context(), "huge", Options{}, nil)
	require.ErrorContains(t, err, `"huge" is a folder; the models in it are called huge/x`)
}

func TestPartsMayBeLinksInsideTheDirectory(t *testing.T) {
	// The cache of Hugging Face's client has links to files that are named after their content.
	m, _ := manager(t, 1<<30)
	snapshot := filepath.Join(m.cfg.Dir, "snapshot")
	require.NoError(t, os.Mkdir(snapshot, 0o755))
	for _, path := range splitSmall(t, m.cfg.Dir, "x") {
		blob := "blob-" + filepath.Base(path)[2:7]
		require.NoError(t, os.Rename(path, filepath.Join(m.cfg.Dir, blob)))
		require.NoError(t, os.Symlink(filepath.Join("..", blob), filepath.Join(snapshot, filepath.Base(path))))
	}
	require.NoError(t, entriesOf(m)["snapshot/x"].Problem)
	_, _, err := m.Load(t.Context(), "snapshot/x", Options{}, nil)
	require.NoError(t, err)
}
