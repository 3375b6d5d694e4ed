def forward(:
