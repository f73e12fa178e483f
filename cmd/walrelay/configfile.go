package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readConfigFile returns the values of a YAML file whose keys are option names;
// lists are for repeatable options. Anything else in it is an error with its line.
// Scalars are taken as they are written: off stays the word off.
func readConfigFile(path string, options []*option) (map[string][]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, usagef("--config %s: %v", path, err)
	}
	values, err := parseConfig(data, options)
	if err != nil {
		return nil, usagef("--config %s: %v", path, err)
	}
	return values, nil
}

func parseConfig(data []byte, options []*option) (map[string][]string, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // empty, or comments only
	} else if err != nil {
		reason, _, _ := strings.Cut(err.Error(), "'") // what it quotes may be a password
		return nil, errors.New("not YAML: " + strings.TrimSpace(reason))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want lines of the form key: value", root.Line)
	}
	byName := make(map[string]*option)
	for _, o := range options {
		if !o.local && o.name != "config" {
			byName[o.name] = o
		}
	}
	values := make(map[string][]string)
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		o := byName[key.Value]
		if o == nil {
			return nil, fmt.Errorf("line %d: unknown key %q; did you mean %q?", key.Line, key.Value, nearest(asFlags(options), key.Value))
		}
		if _, twice := values[o.name]; twice {
			return nil, fmt.Errorf("line %d: %s is given twice", key.Line, o.name)
		}
		texts, err := scalars(o, value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", value.Line, o.name, err)
		}
		values[o.name] = texts
	}
	return values, nil
}

// scalars returns the value of o's key as text.
func scalars(o *option, value *yaml.Node) ([]string, error) {
	nodes := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode && o.list {
		nodes = value.Content
	}
	var texts []string
	for _, n := range nodes {
		switch {
		case n.Kind == yaml.SequenceNode:
			return nil, errors.New("takes one value, not a list")
		case n.Kind != yaml.ScalarNode:
			return nil, errors.New("takes text")
		case n.Tag == "!!null" || n.Value == "":
			return nil, errors.New("has no value; remove the key for the default")
		}
		texts = append(texts, n.Value)
	}
	if len(texts) == 0 {
		return nil, errors.New("the list is empty; remove the key for the default")
	}
	return texts, nil
}
