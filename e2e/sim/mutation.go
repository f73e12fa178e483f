package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Mutation is a planted bug: a patch of the product, and who has to notice.
//
// The patch file begins with lines "# key: value": what is wrong, and by which test it is
// to be caught: sim (the default), or the tests of a package of the product; and the
// scenario that has to, where there is one.
type Mutation struct {
	Name     string
	What     string
	By       string // "sim", or "./checkpoint"
	Scenario string // of TestFound; "": any, or any seed
	file     string
	body     []byte
}

// Mutations reads all patches in a folder.
func Mutations(dir string) ([]Mutation, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no patches in %s: %w", dir, err)
	}
	var all []Mutation
	for _, file := range files {
		m := Mutation{Name: strings.TrimSuffix(filepath.Base(file), ".patch"), By: "sim", file: file}
		if m.body, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(m.body)) {
			key, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": ")
			if !strings.HasPrefix(line, "# ") || !ok {
				break
			}
			switch value = strings.TrimSpace(value); key {
			case "what":
				m.What = value
			case "by":
				m.By = value
			case "scenario":
				m.Scenario = value
			}
		}
		if m.What == "" {
			return nil, fmt.Errorf("%s says not what is wrong", file)
		}
		all = append(all, m)
	}
	return all, nil
}

var patched = regexp.MustCompile(`(?m)^--- a/(\S+)$`)

// Overlay applies the patch to copies of the files that it names, in a folder of its own,
// and returns the file for go's -overlay flag. A patch that doesn't apply is an error.
func (m Mutation) Overlay(root, dir string) (string, error) {
	replace := map[string]string{}
	for _, found := range patched.FindAllSubmatch(m.body, -1) {
		name := string(found[1])
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, source, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, name)] = to
	}
	if len(replace) == 0 {
		return "", fmt.Errorf("%s changes no file", m.file)
	}
	apply := exec.Command("git", "apply", "-")
	apply.Dir = dir
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_DIR=/nonexistent")
	apply.Stdin = bytes.NewReader(m.body)
	if out, err := apply.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s doesn't apply any more; plant the bug anew: %s", m.file, out)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, overlay, 0o600)
}
